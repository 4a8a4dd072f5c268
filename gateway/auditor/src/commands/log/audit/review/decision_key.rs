//! Ids of decisions in a form that takes little memory: an audit remembers each.

/// Id of a decision, without an allocation of its own if it is as gateways make it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DecisionKey {
    /// 32 hexadecimal digits, lower case.
    Number([u8; 16]),
    Text(Box<str>),
}

impl From<&str> for DecisionKey {
    fn from(id: &str) -> Self {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let number = (id.len() == 32 && id.bytes().all(is_digit)).then(|| u128::from_str_radix(id, 16).ok());
        match number.flatten() {
            Some(number) => Self::Number(number.to_be_bytes()),
            None => Self::Text(id.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_ids_have_different_keys() {
        let ids = [
            "0".repeat(32),
            "0a".repeat(16),
            "0A".repeat(16),
            "0a".repeat(15),
            "0".repeat(31),
            "0".repeat(33),
            format!("+{}", "0".repeat(31)),
            "f".repeat(32),
            String::new(),
            "ä".repeat(16),
        ];
        for (at, id) in ids.iter().enumerate() {
            let same = ids
                .iter()
                .position(|other| DecisionKey::from(other.as_str()) == DecisionKey::from(id.as_str()));
            assert_eq!(same, Some(at), "{id}");
        }
        assert_eq!(DecisionKey::from("0a".repeat(16).as_str()), DecisionKey::Number([10; 16]));
    }
}
