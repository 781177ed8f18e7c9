//! Hexadecimal digits of ids: every message that passes a sidecar has some read and some written.

/// The 16 lower-case digits of `id`.
#[inline]
pub(crate) fn of_u64(id: u64) -> [u8; 16] {
    let mut text = [0; 16];
    text[..8].copy_from_slice(&of_u32((id >> 32) as u32));
    text[8..].copy_from_slice(&of_u32(id as u32));
    text
}

/// The 8 lower-case digits of `number`.
#[inline]
pub(crate) fn of_u32(number: u32) -> [u8; 8] {
    // All digits at once, each in a byte of its own.
    const ONES: u64 = 0x0101_0101_0101_0101;
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
    }
}
