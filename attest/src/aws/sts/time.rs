//! The time of a Signature Version 4: `YYYYMMDDTHHMMSSZ`.

/// Parses `YYYYMMDDTHHMMSSZ` into seconds since 1970; `None` if the text is not such a time.
pub(super) fn parse(text: &str) -> Option<u64> {
    let bytes: &[u8; 16] = text.as_bytes().try_into().ok()?;
    let [y0, y1, y2, y3, m0, m1, d0, d1, b'T', h0, h1, n0, n1, s0, s1, b'Z'] = bytes else {
        return None;
    };
    let year = number(&[*y0, *y1, *y2, *y3])?;
    let (month, day) = (number(&[*m0, *m1])?, number(&[*d0, *d1])?);
    let (hour, minute, second) = (number(&[*h0, *h1])?, number(&[*n0, *n1])?, number(&[*s0, *s1])?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = lengths.get(..usize::try_from(month.checked_sub(1)?).ok()?)?;
    let length = *lengths.get(before.len())?;
    if year < 1970 || !(1..=length).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let days = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969) + before.iter().sum::<u64>() + day - 1;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        Some(value * 10 + digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, seconds: Option<u64>) {
        assert_eq!(parse(text), seconds, "{text}");
    }

    #[test]
    fn sts_dates_are_parsed() {
        check("19700101T000000Z", Some(0));
        check("20000229T000000Z", Some(951_782_400));
        check("20270115T080000Z", Some(1_800_000_000));
        check("20240301T000000Z", Some(1_709_251_200));
        check("99991231T235959Z", Some(253_402_300_799));
        for none in [
            "",
            "20270115T080000",
            "20270115T080000z",
            "20270115 080000Z",
            "20270115T080000Z ",
            "2027011ST080000Z",
            "20270015T080000Z",
            "20271315T080000Z",
            "20270132T080000Z",
            "20270100T080000Z",
            "20270229T080000Z",
            "21000229T080000Z",
            "20270115T240000Z",
            "20270115T086000Z",
            "20270115T080060Z",
            "19691231T235959Z",
            "+0270115T080000Z",
            "2027011\u{b9}080000Z",
        ] {
            check(none, None);
        }
    }
}
