//! HPACK: decoding any block, encoding what came out, and Huffman coding.
//!
//! Both decoders must keep the same table as the encoder between them, within what was allowed; what is decoded from what
//! was encoded is what was decoded first.

use super::Input;
use crate::hpack::{Decoder, Encoder, HeaderList, Indexing, TABLE_LIMIT, huffman};

/// The decoder's limit for one list.
const LIST: usize = 16 * 1024;

pub(super) fn run(input: &[u8]) {
    code(input);
    let mut input = Input(input);
    // As in the editor: from one peer's table into the other's.
    let mut first = Decoder::new(LIST);
    let (mut encoder, mut second) = (Encoder::default(), Decoder::new(2 * LIST));
    let (mut list, mut again) = (HeaderList::default(), HeaderList::default());
    while !input.is_empty() {
        match input.byte() {
            0 => first.allow(input.u16().into()),
            1 => {
                let max = input.u16().into();
                encoder.resize(max);
                second.allow(max);
            }
            choice => {
                let block = if choice & 1 == 0 { input.piece() } else { input.bytes(usize::MAX) };
                if first.decode(block, &mut list).is_err() {
                    assert!(first.table_size() <= TABLE_LIMIT && list.size() <= 2 * LIST);
                    return;
                }
                assert!(list.size() <= LIST, "a list of {}", list.size());
                assert!(first.table_size() <= TABLE_LIMIT);
                let mut block = Vec::new();
                encoder.begin(&mut block);
                for index in 0..list.len() {
                    encoder.relay(&list, index, &mut block);
                }
                let ours = choice & 2 == 0;
                if ours {
                    encoder.field(b"aftershock-hop", b"AQMAAAAAAAAAAQ", Indexing::Never, &mut block);
                }
                second.decode(&block, &mut again).expect("what was encoded can be decoded");
                same(&list, &again, ours);
                assert!(encoder.table().eq(second.table()), "the tables of both ends are equal");
                assert!(encoder.table_size() <= TABLE_LIMIT);
            }
        }
    }
}

fn same(list: &HeaderList, again: &HeaderList, ours: bool) {
    assert_eq!(again.len(), list.len() + usize::from(ours));
    for index in 0..list.len() {
        assert_eq!(again.get(index), list.get(index));
        let (before, after) = (list.indexing(index), again.indexing(index));
        assert!(before != Indexing::Never || after == Indexing::Never, "what must not be indexed stays so");
    }
    if ours {
        assert_eq!(again.indexing(list.len()), Indexing::Never);
    }
}

fn code(input: &[u8]) {
    let mut plain = Vec::new();
    if huffman::decode(input, &mut plain).is_ok() {
        assert!(plain.len() <= input.len() * 8 / 5);
        let mut coded = Vec::new();
        huffman::encode(&plain, &mut coded);
        assert_eq!(coded, input, "a text has one code");
    }
    let mut coded = Vec::new();
    huffman::encode(input, &mut coded);
    assert_eq!(coded.len(), huffman::encoded_len(input));
    let mut plain = Vec::new();
    huffman::decode(&coded, &mut plain).expect("what was encoded can be decoded");
    assert_eq!(plain, input);
}
