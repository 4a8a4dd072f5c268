//! Durations on the command line.

use attest_system::clock::lasting;

/// Longest accepted duration: the lifetime of certificates.
pub const LONGEST_SECONDS: u64 = 3650 * 86_400;

/// Parses a duration such as `90m`, in seconds.
pub fn seconds(text: &str) -> Result<u64, String> {
    match seconds_or_none(text)? {
        0 => Err(format!("between 1s and {}", lasting(LONGEST_SECONDS))),
        seconds => Ok(seconds),
    }
}

/// Parses a duration like [`seconds`], or `0s`.
pub fn seconds_or_none(text: &str) -> Result<u64, String> {
    let usage = || "use a number with s, m, h or d, such as 24h".to_owned();
    let unit = text.chars().last().ok_or_else(usage)?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(usage()),
    };
    let number = text
        .strip_suffix(unit)
        .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let number: u64 = number.and_then(|number| number.parse().ok()).ok_or_else(usage)?;
    number
        .checked_mul(factor)
        .filter(|seconds| *seconds <= LONGEST_SECONDS)
        .ok_or_else(|| format!("at most {}", lasting(LONGEST_SECONDS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_with_a_unit() {
        for (text, expected) in [("90s", 90), ("2m", 120), ("24h", 86_400), ("3650d", 3650 * 86_400)] {
            assert_eq!(seconds(text), Ok(expected));
        }
        assert_eq!(seconds_or_none("0s"), Ok(0));
        for bad in [
            "",
            "s",
            "0s",
            "24",
            "h24",
            "24hh",
            "+24h",
            "-1h",
            "1.5h",
            "3651d",
            "18446744073709551615d",
            "1 h",
            "1w",
        ] {
            seconds(bad).unwrap_err();
        }
    }
}
