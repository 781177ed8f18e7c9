//! Hexadecimal digits of ids: every message that passes a sidecar has some read and some written.

/// The 16 lower-case digits of `id`.
#[inline]
pub(crate) fn of_u64(id: u64) -> [u8; 16] {
    let mut text = [0; 16];
    text[..8].copy_from_slice(&of_u32((id >> 32) as u32));
    text[8..].copy_from_slice(&of_u32(id as u32));
    text
}

/// A one in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;
/// The low half of each byte.
const LOW_HALVES: u64 = 0x0f * ONES;

/// The number of 8 lower-case digits; none if one of them is something else.
#[inline]
pub(crate) fn to_u32(digits: [u8; 8]) -> Option<u32> {
    // All digits at once, each in a byte of its own.
    let text = u64::from_be_bytes(digits);
    // 1 in the bytes that would be letters, which stand four columns behind the digits.
    let letters = text >> 6 & ONES;
    let column = 0x30 * ONES + 0x30 * letters;
    // A letter is worth nine more than its place in its column: at most 24, and no byte reaches the next.
    let mut x = (text & LOW_HALVES) + 9 * letters;
    let ten_or_more = (x + 6 * ONES) >> 4 & ONES;
    if ((text ^ column) | x) & !LOW_HALVES != 0 || ten_or_more != letters {
        return None;
    }
    x = (x >> 4 | x) & 0x00ff_00ff_00ff_00ff;
    x = (x >> 8 | x) & 0x0000_ffff_0000_ffff;
    x = (x >> 16 | x) & 0xffff_ffff;
    Some(x as u32)
}

/// The 8 lower-case digits of `number`.
#[inline]
pub(crate) fn of_u32(number: u32) -> [u8; 8] {
    let mut x = u64::from(number);
    x = (x << 16 | x) & 0x0000_ffff_0000_ffff;
    x = (x << 8 | x) & 0x00ff_00ff_00ff_00ff;
    x = (x << 4 | x) & 0x0f0f_0f0f_0f0f_0f0f;
    // 1 in the bytes of at least ten.
    let letters = (x + 6 * ONES) >> 4 & ONES;
    (x + u64::from(b'0') * ONES + letters * u64::from(b'a' - b'0' - 10)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn digits_are_those_of_the_standard_library(id: u64) {
            prop_assert_eq!(of_u64(id).to_vec(), format!("{id:016x}").into_bytes());
            prop_assert_eq!(of_u32(id as u32).to_vec(), format!("{:08x}", id as u32).into_bytes());
        }

        #[test]
        fn numbers_are_those_of_the_standard_library(number: u32) {
            let text = format!("{number:08x}").into_bytes();
            prop_assert_eq!(to_u32(text.try_into().unwrap()), Some(number));
        }
    }

    #[test]
    fn nothing_but_sixteen_digits_is_one_wherever_it_stands() {
        for (at, byte) in (0..8).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
            for mut text in [*b"00000000", *b"ffffffff", *b"09af09af"] {
                text[at] = byte;
                let digits = std::str::from_utf8(&text).ok().filter(|_| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
                let expected = digits.map(|digits| u32::from_str_radix(digits, 16).unwrap());
                assert_eq!(to_u32(text), expected, "{text:?}");
            }
        }
    }
}
