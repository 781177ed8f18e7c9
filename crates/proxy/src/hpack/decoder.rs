//! RFC 7541 §3, §6: from a header block to a header list.

use super::table::{Dynamic, OVERHEAD, STATIC};
use super::{Error, Field, HeaderList, Indexing, TABLE_LIMIT, huffman};

/// Decodes the header blocks of one direction of a connection, in order.
#[derive(Debug)]
pub struct Decoder {
    pub(super) table: Dynamic,
    /// The largest table size the encoder may choose.
    allowed: usize,
    max_list: usize,
}

impl Decoder {
    /// A decoder that refuses lists larger than `max_list` (counted as in [`HeaderList::size`]).
    pub fn new(max_list: usize) -> Self {
        Self { table: Dynamic::new(TABLE_LIMIT), allowed: TABLE_LIMIT, max_list }
    }

    /// The largest table size that the encoder may choose from now on, at most [`TABLE_LIMIT`]. An encoder that keeps a
    /// larger table than it should is followed: the table it uses is the one that decodes its blocks.
    pub fn allow(&mut self, max: usize) {
        self.allowed = max.min(TABLE_LIMIT);
    }

    /// The largest table size that the encoder may choose.
    pub fn allowed(&self) -> usize {
        self.allowed
    }

    /// Octets of the dynamic table in use (RFC 7541 §4.1).
    pub fn table_size(&self) -> usize {
        self.table.size()
    }

    /// Entries of the dynamic table, newest first.
    pub fn table(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        (0..self.table.len()).filter_map(|index| self.table.get(index))
    }

    /// Decode one complete block into `list`, which is cleared first.
    pub fn decode(&mut self, block: &[u8], list: &mut HeaderList) -> Result<(), Error> {
        list.clear();
        let mut input = block;
        while let Some(&first) = input.first() {
            if first & 0x80 != 0 {
                let index = integer(&mut input, 7)?;
                self.indexed(index, list)?;
            } else if first & 0x40 != 0 {
                self.literal(&mut input, 6, Indexing::Incremental, list)?;
            } else if first & 0x20 != 0 {
                if !list.is_empty() {
                    return Err(Error::LateSizeUpdate);
                }
                let size = integer(&mut input, 5)?;
                if size > self.allowed {
                    return Err(Error::SizeUpdate(size));
                }
                self.table.set_max(size);
            } else {
                let indexing = if first & 0x10 != 0 { Indexing::Never } else { Indexing::Without };
                self.literal(&mut input, 4, indexing, list)?;
            }
            if list.size() > self.max_list {
                return Err(Error::ListTooLarge(self.max_list));
            }
        }
        Ok(())
    }

    fn lookup(&self, index: usize) -> Result<(&[u8], &[u8]), Error> {
        match index {
            0 => Err(Error::Index(0)),
            1..=61 => {
                let (name, value) = STATIC[index - 1];
                Ok((name.as_bytes(), value.as_bytes()))
            }
            _ => self.table.get(index - 62).ok_or(Error::Index(index)),
        }
    }

    fn indexed(&self, index: usize, list: &mut HeaderList) -> Result<(), Error> {
        let (name, value) = self.lookup(index)?;
        list.push(name, value, Indexing::Incremental);
        let field = list.fields.last_mut().expect("a field was just pushed");
        if index < 62 {
            (field.fixed, field.whole) = (index as u8, true);
        } else {
            field.entry = Some(self.table.number(index - 62));
        }
        Ok(())
    }

    fn literal(
        &mut self,
        input: &mut &[u8],
        prefix: u8,
        indexing: Indexing,
        list: &mut HeaderList,
    ) -> Result<(), Error> {
        let index = integer(input, prefix)?;
        let at = list.octets.len();
        if index == 0 {
            self.string(input, list)?;
        } else {
            let (name, _) = self.lookup(index)?;
            list.octets.extend_from_slice(name);
        }
        let name_len = list.octets.len() - at;
        let coded_at = list.coded.len();
        if let Some(coded) = self.string(input, list)? {
            list.coded.extend_from_slice(coded);
        }
        let value_len = list.octets.len() - at - name_len;
        list.fields.push(Field {
            at: at as u32,
            name_len: name_len as u32,
            value_len: value_len as u32,
            indexing,
            fixed: if index < 62 { index as u8 } else { 0 },
            whole: false,
            coded_at: coded_at as u32,
            coded_len: (list.coded.len() - coded_at) as u32,
            entry: None,
        });
        if indexing == Indexing::Incremental {
            let (name, value) = list.octets[at..].split_at(name_len);
            self.table.insert(name, value, (0, 0));
        }
        Ok(())
    }

    /// RFC 7541 §5.2. Nothing is appended beyond the list limit. The coded form, if it was coded.
    fn string<'a>(&self, input: &mut &'a [u8], list: &mut HeaderList) -> Result<Option<&'a [u8]>, Error> {
        let coded = input.first().is_some_and(|first| first & 0x80 != 0);
        let len = integer(input, 7)?;
        if len > input.len() {
            return Err(Error::Truncated);
        }
        // A Huffman code has at most 30 bits an octet, so this bounds what is decoded before it is decoded.
        let least = if coded { len * 8 / 30 } else { len };
        if list.size() + OVERHEAD + least > self.max_list {
            return Err(Error::ListTooLarge(self.max_list));
        }
        let (octets, rest) = input.split_at(len);
        *input = rest;
        if coded {
            huffman::decode(octets, &mut list.octets)?;
            Ok(Some(octets))
        } else {
            list.octets.extend_from_slice(octets);
            Ok(None)
        }
    }
}

/// RFC 7541 §5.1, at most 28 bits: no legitimate length or index comes near.
fn integer(input: &mut &[u8], prefix: u8) -> Result<usize, Error> {
    let mask = (1u8 << prefix) - 1;
    let (first, mut rest) = input.split_first().ok_or(Error::Truncated)?;
    let mut value = usize::from(first & mask);
    if value == usize::from(mask) {
        let mut shift = 0;
        loop {
            let (octet, after) = rest.split_first().ok_or(Error::Truncated)?;
            rest = after;
            if shift > 21 {
                return Err(Error::Integer);
            }
            value += usize::from(octet & 0x7f) << shift;
            shift += 7;
            if octet & 0x80 == 0 {
                break;
            }
        }
    }
    *input = rest;
    Ok(value)
}
