//! The Huffman code of RFC 7541 appendix B.
//!
//! Decoding takes a symbol a lookup; the codes too long for that are found by length, since the code is canonical. All
//! tables follow from the one of the appendix at compile time.

use super::Error;

/// Code and its length in bits for every octet; the end-of-string symbol is last.
#[rustfmt::skip]
const CODES: [(u32, u8); 257] = [
    (0x1ff8, 13), (0x7fffd8, 23), (0xfffffe2, 28), (0xfffffe3, 28), (0xfffffe4, 28), (0xfffffe5, 28), (0xfffffe6, 28),
    (0xfffffe7, 28), (0xfffffe8, 28), (0xffffea, 24), (0x3ffffffc, 30), (0xfffffe9, 28), (0xfffffea, 28),
    (0x3ffffffd, 30), (0xfffffeb, 28), (0xfffffec, 28), (0xfffffed, 28), (0xfffffee, 28), (0xfffffef, 28),
    (0xffffff0, 28), (0xffffff1, 28), (0xffffff2, 28), (0x3ffffffe, 30), (0xffffff3, 28), (0xffffff4, 28),
    (0xffffff5, 28), (0xffffff6, 28), (0xffffff7, 28), (0xffffff8, 28), (0xffffff9, 28), (0xffffffa, 28),
    (0xffffffb, 28), (0x14, 6), (0x3f8, 10), (0x3f9, 10), (0xffa, 12), (0x1ff9, 13), (0x15, 6), (0xf8, 8),
    (0x7fa, 11), (0x3fa, 10), (0x3fb, 10), (0xf9, 8), (0x7fb, 11), (0xfa, 8), (0x16, 6), (0x17, 6), (0x18, 6),
    (0x0, 5), (0x1, 5), (0x2, 5), (0x19, 6), (0x1a, 6), (0x1b, 6), (0x1c, 6), (0x1d, 6), (0x1e, 6), (0x1f, 6),
    (0x5c, 7), (0xfb, 8), (0x7ffc, 15), (0x20, 6), (0xffb, 12), (0x3fc, 10), (0x1ffa, 13), (0x21, 6), (0x5d, 7),
    (0x5e, 7), (0x5f, 7), (0x60, 7), (0x61, 7), (0x62, 7), (0x63, 7), (0x64, 7), (0x65, 7), (0x66, 7), (0x67, 7),
    (0x68, 7), (0x69, 7), (0x6a, 7), (0x6b, 7), (0x6c, 7), (0x6d, 7), (0x6e, 7), (0x6f, 7), (0x70, 7), (0x71, 7),
    (0x72, 7), (0xfc, 8), (0x73, 7), (0xfd, 8), (0x1ffb, 13), (0x7fff0, 19), (0x1ffc, 13), (0x3ffc, 14), (0x22, 6),
    (0x7ffd, 15), (0x3, 5), (0x23, 6), (0x4, 5), (0x24, 6), (0x5, 5), (0x25, 6), (0x26, 6), (0x27, 6), (0x6, 5),
    (0x74, 7), (0x75, 7), (0x28, 6), (0x29, 6), (0x2a, 6), (0x7, 5), (0x2b, 6), (0x76, 7), (0x2c, 6), (0x8, 5),
    (0x9, 5), (0x2d, 6), (0x77, 7), (0x78, 7), (0x79, 7), (0x7a, 7), (0x7b, 7), (0x7ffe, 15), (0x7fc, 11),
    (0x3ffd, 14), (0x1ffd, 13), (0xffffffc, 28), (0xfffe6, 20), (0x3fffd2, 22), (0xfffe7, 20), (0xfffe8, 20),
    (0x3fffd3, 22), (0x3fffd4, 22), (0x3fffd5, 22), (0x7fffd9, 23), (0x3fffd6, 22), (0x7fffda, 23), (0x7fffdb, 23),
    (0x7fffdc, 23), (0x7fffdd, 23), (0x7fffde, 23), (0xffffeb, 24), (0x7fffdf, 23), (0xffffec, 24), (0xffffed, 24),
    (0x3fffd7, 22), (0x7fffe0, 23), (0xffffee, 24), (0x7fffe1, 23), (0x7fffe2, 23), (0x7fffe3, 23), (0x7fffe4, 23),
    (0x1fffdc, 21), (0x3fffd8, 22), (0x7fffe5, 23), (0x3fffd9, 22), (0x7fffe6, 23), (0x7fffe7, 23), (0xffffef, 24),
    (0x3fffda, 22), (0x1fffdd, 21), (0xfffe9, 20), (0x3fffdb, 22), (0x3fffdc, 22), (0x7fffe8, 23), (0x7fffe9, 23),
    (0x1fffde, 21), (0x7fffea, 23), (0x3fffdd, 22), (0x3fffde, 22), (0xfffff0, 24), (0x1fffdf, 21), (0x3fffdf, 22),
    (0x7fffeb, 23), (0x7fffec, 23), (0x1fffe0, 21), (0x1fffe1, 21), (0x3fffe0, 22), (0x1fffe2, 21), (0x7fffed, 23),
    (0x3fffe1, 22), (0x7fffee, 23), (0x7fffef, 23), (0xfffea, 20), (0x3fffe2, 22), (0x3fffe3, 22), (0x3fffe4, 22),
    (0x7ffff0, 23), (0x3fffe5, 22), (0x3fffe6, 22), (0x7ffff1, 23), (0x3ffffe0, 26), (0x3ffffe1, 26), (0xfffeb, 20),
    (0x7fff1, 19), (0x3fffe7, 22), (0x7ffff2, 23), (0x3fffe8, 22), (0x1ffffec, 25), (0x3ffffe2, 26), (0x3ffffe3, 26),
    (0x3ffffe4, 26), (0x7ffffde, 27), (0x7ffffdf, 27), (0x3ffffe5, 26), (0xfffff1, 24), (0x1ffffed, 25),
    (0x7fff2, 19), (0x1fffe3, 21), (0x3ffffe6, 26), (0x7ffffe0, 27), (0x7ffffe1, 27), (0x3ffffe7, 26),
    (0x7ffffe2, 27), (0xfffff2, 24), (0x1fffe4, 21), (0x1fffe5, 21), (0x3ffffe8, 26), (0x3ffffe9, 26),
    (0xffffffd, 28), (0x7ffffe3, 27), (0x7ffffe4, 27), (0x7ffffe5, 27), (0xfffec, 20), (0xfffff3, 24), (0xfffed, 20),
    (0x1fffe6, 21), (0x3fffe9, 22), (0x1fffe7, 21), (0x1fffe8, 21), (0x7ffff3, 23), (0x3fffea, 22), (0x3fffeb, 22),
    (0x1ffffee, 25), (0x1ffffef, 25), (0xfffff4, 24), (0xfffff5, 24), (0x3ffffea, 26), (0x7ffff4, 23),
    (0x3ffffeb, 26), (0x7ffffe6, 27), (0x3ffffec, 26), (0x3ffffed, 26), (0x7ffffe7, 27), (0x7ffffe8, 27),
    (0x7ffffe9, 27), (0x7ffffea, 27), (0x7ffffeb, 27), (0xffffffe, 28), (0x7ffffec, 27), (0x7ffffed, 27),
    (0x7ffffee, 27), (0x7ffffef, 27), (0x7fffff0, 27), (0x3ffffee, 26), (0x3fffffff, 30),
];

/// Bits of the first lookup: enough for every symbol that header fields are made of.
const FAST_BITS: u32 = 10;
/// The longest code.
const LONGEST: usize = 30;
/// Octets of the alphabet, and the end-of-string symbol.
const END: u16 = 256;

/// Symbol and code length by the next [`FAST_BITS`] bits; length 0 where the code is longer.
static FAST: [(u8, u8); 1 << FAST_BITS] = {
    let mut table = [(0, 0); 1 << FAST_BITS];
    let mut symbol = 0;
    while symbol < 256 {
        let (code, len) = CODES[symbol];
        if len as u32 <= FAST_BITS {
            let spare = FAST_BITS - len as u32;
            let mut at = (code as usize) << spare;
            let end = at + (1 << spare);
            while at < end {
                table[at] = (symbol as u8, len);
                at += 1;
            }
        }
        symbol += 1;
    }
    table
};

/// The code is canonical: per length, the first code, and where its symbols begin in [`BY_LENGTH`].
static LENGTHS: [(u32, u16, u16); LONGEST + 1] = {
    let mut lengths = [(0, 0, 0); LONGEST + 1];
    let mut begin = 0;
    let mut len = 1;
    while len <= LONGEST {
        let (mut first, mut count) = (u32::MAX, 0);
        let mut symbol = 0;
        while symbol <= END as usize {
            if CODES[symbol].1 as usize == len {
                if CODES[symbol].0 < first {
                    first = CODES[symbol].0;
                }
                count += 1;
            }
            symbol += 1;
        }
        lengths[len] = (first, begin, count);
        begin += count;
        len += 1;
    }
    lengths
};

/// Symbols by length of code, then by code.
static BY_LENGTH: [u16; 257] = {
    let mut symbols = [0; 257];
    let mut symbol = 0;
    while symbol <= END as usize {
        let (code, len) = CODES[symbol];
        let (first, begin, _) = LENGTHS[len as usize];
        symbols[begin as usize + (code - first) as usize] = symbol as u16;
        symbol += 1;
    }
    symbols
};

/// The symbol whose code, longer than [`FAST_BITS`], starts the `held` bits at the top of `bits`.
fn long(bits: u64, held: u32) -> Option<(u16, u32)> {
    for len in FAST_BITS + 1..=held.min(LONGEST as u32) {
        let (first, begin, count) = LENGTHS[len as usize];
        let code = (bits >> (64 - len)) as u32;
        if code >= first && code - first < u32::from(count) {
            return Some((BY_LENGTH[usize::from(begin) + (code - first) as usize], len));
        }
    }
    None
}

/// Append the decoded form of `input` to `out`: at most 8/5 of its length.
pub(crate) fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    out.reserve(input.len() * 8 / 5);
    // The next bits, from the top, and how many of them are there.
    let (mut bits, mut held) = (0u64, 0u32);
    let mut rest = input;
    loop {
        while held <= 56 {
            let Some((octet, after)) = rest.split_first() else { break };
            bits |= u64::from(*octet) << (56 - held);
            held += 8;
            rest = after;
        }
        // At least 26 bits after that, unless these are the last: two symbols without another look.
        for _ in 0..2 {
            let (symbol, len) = FAST[(bits >> (64 - FAST_BITS)) as usize];
            if len == 0 || u32::from(len) > held {
                let Some((symbol, len)) = long(bits, held) else {
                    // What is left is padding: fewer than eight bits, all ones, as the end-of-string code starts.
                    let padding = held < 8 && rest.is_empty() && (bits.leading_ones() >= held);
                    return if padding { Ok(()) } else { Err(Error::Huffman) };
                };
                if symbol == END {
                    return Err(Error::Huffman);
                }
                out.push(symbol as u8);
                bits <<= len;
                held -= len;
                break;
            }
            out.push(symbol);
            bits <<= len;
            held -= u32::from(len);
        }
    }
}

/// Length of the encoded form of `input`, in octets.
pub(crate) fn encoded_len(input: &[u8]) -> usize {
    input.iter().map(|byte| CODES[*byte as usize].1 as usize).sum::<usize>().div_ceil(8)
}

/// Append the encoded form of `input` to `out`.
pub(crate) fn encode(input: &[u8], out: &mut Vec<u8>) {
    let mut bits: u64 = 0;
    let mut held = 0;
    for byte in input {
        let (code, len) = CODES[*byte as usize];
        bits = bits << len | u64::from(code);
        held += len;
        while held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    if held > 0 {
        // Filled up with the first bits of the end-of-string code, which are ones.
        out.push((bits << (8 - held)) as u8 | (0xff >> held));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit against the code table, the obvious way.
    fn decode_slowly(input: &[u8]) -> Result<Vec<u8>, Error> {
        let bits: Vec<u32> = input.iter().flat_map(|b| (0..8).rev().map(move |i| u32::from(b >> i) & 1)).collect();
        let mut out = Vec::new();
        let (mut code, mut len) = (0, 0);
        for bit in bits {
            code = code << 1 | bit;
            len += 1;
            match CODES.iter().position(|c| *c == (code, len)) {
                Some(256) => return Err(Error::Huffman),
                Some(symbol) => {
                    out.push(symbol as u8);
                    (code, len) = (0, 0);
                }
                None if len > 30 => return Err(Error::Huffman),
                None => {}
            }
        }
        if len < 8 && code == (1 << len) - 1 { Ok(out) } else { Err(Error::Huffman) }
    }

    fn fast(input: &[u8]) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        decode(input, &mut out).map(|()| out)
    }

    #[test]
    fn code_is_complete_and_prefix_free() {
        let kraft: u64 = CODES.iter().map(|(_, len)| 1u64 << (30 - len)).sum();
        assert_eq!(kraft, 1 << 30);
    }

    #[test]
    fn every_octet_survives_in_every_position() {
        for a in 0..=255u8 {
            for b in [0, b'a', b'~', 0xff, a] {
                let text = [a, b, a];
                let mut coded = Vec::new();
                encode(&text, &mut coded);
                assert_eq!(coded.len(), encoded_len(&text));
                assert_eq!(fast(&coded).unwrap(), text);
            }
        }
    }

    #[test]
    fn decoding_agrees_with_the_code_table_on_every_two_octets_and_on_long_codes() {
        for first in 0..=255u8 {
            assert_eq!(fast(&[first]), decode_slowly(&[first]), "{first:02x}");
            for second in 0..=255u8 {
                let input = [first, second];
                assert_eq!(fast(&input), decode_slowly(&input), "{input:02x?}");
            }
        }
        // Long codes and their neighbours: 1s, then anything.
        let mut state = 1u32;
        for ones in 0..4 {
            for _ in 0..3000 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let mut input = vec![0xff; ones];
                input.extend_from_slice(&state.to_be_bytes());
                assert_eq!(fast(&input), decode_slowly(&input), "{input:02x?}");
            }
        }
    }

    #[test]
    fn end_of_string_code_and_overlong_padding_are_refused() {
        assert_eq!(fast(&[0xff, 0xff, 0xff, 0xfc]), Err(Error::Huffman));
        assert_eq!(fast(&[0xff, 0xff, 0xff, 0xff, 0xff]), Err(Error::Huffman));
        assert_eq!(fast(&[0xff]), Err(Error::Huffman));
        assert_eq!(fast(&[0b0001_1111, 0xff]), Err(Error::Huffman), "a padding of eleven bits");
        assert_eq!(fast(&[0b0001_1000]), Err(Error::Huffman), "a padding with a zero");
        assert_eq!(fast(&[0b0001_1111]).unwrap(), b"a");
        assert_eq!(fast(&[]).unwrap(), b"");
    }
}
