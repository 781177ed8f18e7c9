//! RFC 7541 §4.2, §6: from a header list to a header block.

use super::table::{self, Dynamic, Found, OVERHEAD};
use super::{HeaderList, Indexing, TABLE_LIMIT, huffman};

/// Encodes the header blocks of one direction of a connection, in order.
#[derive(Debug)]
pub struct Encoder {
    pub(super) table: Dynamic,
    /// Size changes since the last block: the smallest, and the last (RFC 7541 §4.2).
    pending: Option<(usize, usize)>,
    /// Where references to the sender's table led the last time: from the number of its entry to that of ours. Only a hint,
    /// the octets decide; it spares hashing and searching in nearly every case.
    hints: [u32; HINTS],
}

/// More than a table of [`TABLE_LIMIT`] has entries.
const HINTS: usize = 128;

impl Default for Encoder {
    fn default() -> Self {
        Self { table: Dynamic::new(TABLE_LIMIT), pending: None, hints: [u32::MAX; HINTS] }
    }
}

impl Encoder {
    /// The decoder's SETTINGS_HEADER_TABLE_SIZE, once acknowledged. At most [`TABLE_LIMIT`] of it is used; the next block
    /// starts with the size update if the size changes.
    pub fn resize(&mut self, max: usize) {
        let max = max.min(TABLE_LIMIT);
        let (smallest, last) = self.pending.unwrap_or((self.table.max(), self.table.max()));
        if max != last || max < smallest {
            self.pending = Some((smallest.min(max), max));
        }
    }

    /// Octets of the dynamic table in use.
    pub fn table_size(&self) -> usize {
        self.table.size()
    }

    /// Entries of the dynamic table, newest first.
    pub fn table(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        (0..self.table.len()).filter_map(|index| self.table.get(index))
    }

    /// Start a block: must precede the fields of each block.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, last)) = self.pending.take() {
            if smallest < last {
                integer(smallest, 5, 0x20, out);
                self.table.set_max(smallest);
            }
            integer(last, 5, 0x20, out);
            self.table.set_max(last);
        }
    }

    /// Encode field `index` of `list`, in the representation its sender chose as far as the tables allow.
    pub fn relay(&mut self, list: &HeaderList, index: usize, out: &mut Vec<u8>) {
        let field = list.fields[index];
        if field.whole {
            return integer(field.fixed.into(), 7, 0x80, out);
        }
        if let Some(entry) = field.entry {
            let (octets, name_len) = list.octets(index);
            let hint = self.hints[entry as usize % HINTS];
            if let Some(index) = self.table.numbered(hint, octets, name_len) {
                return integer(index + 62, 7, 0x80, out);
            }
        }
        let (name, value) = list.get(index);
        let coded = &list.coded[field.coded_at as usize..][..field.coded_len as usize];
        let form = if coded.is_empty() { Form::Shorter } else { Form::Coded(coded) };
        let number = self.represent(name, value, field.indexing, field.fixed, form, out);
        if let (Some(entry), Some(number)) = (field.entry, number) {
            self.hints[entry as usize % HINTS] = number;
        }
    }

    /// Encode a field that is not from a list.
    pub fn field(&mut self, name: &[u8], value: &[u8], indexing: Indexing, out: &mut Vec<u8>) {
        // A value that is never indexed is ours: long, random, written once. Huffman would cost both sides more than it saves.
        let fixed = table::static_name(name).unwrap_or(0);
        if indexing == Indexing::Incremental
            && fixed != 0
            && let Some(whole) = table::static_value(fixed, value)
        {
            return integer(whole.into(), 7, 0x80, out);
        }
        let form = if indexing == Indexing::Never { Form::Plain } else { Form::Shorter };
        self.represent(name, value, indexing, fixed, form, out);
    }

    /// The number of the entry it is a reference to, or became.
    fn represent(
        &mut self,
        name: &[u8],
        value: &[u8],
        indexing: Indexing,
        fixed: u8,
        form: Form<'_>,
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        let fixed = if fixed == 0 { table::static_name(name).unwrap_or(0) } else { fixed };
        // An entry that does not fit would empty the table for nothing.
        let enters = indexing == Indexing::Incremental && name.len() + value.len() + OVERHEAD <= self.table.max();
        let mut name_index = usize::from(fixed);
        if enters || name_index == 0 {
            let tag = (table::hash(name), table::hash(value));
            match self.table.find(name, value, tag) {
                Found::Field(index) if indexing == Indexing::Incremental => {
                    integer(index + 62, 7, 0x80, out);
                    return Some(self.table.number(index));
                }
                Found::Field(index) | Found::Name(index) if name_index == 0 => name_index = index + 62,
                _ => {}
            }
            if enters {
                integer(name_index, 6, 0x40, out);
                if name_index == 0 {
                    string(name, Form::Shorter, out);
                }
                string(value, form, out);
                self.table.insert(name, value, tag);
                return Some(self.table.number(0));
            }
        }
        integer(name_index, 4, if indexing == Indexing::Never { 0x10 } else { 0 }, out);
        if name_index == 0 {
            string(name, Form::Shorter, out);
        }
        string(value, form, out);
        None
    }
}

/// How a string is written.
#[derive(Clone, Copy)]
enum Form<'a> {
    /// As it is.
    Plain,
    /// Huffman-coded unless that is longer.
    Shorter,
    /// In this coded form of it.
    Coded(&'a [u8]),
}

fn string(octets: &[u8], form: Form<'_>, out: &mut Vec<u8>) {
    match form {
        Form::Coded(coded) => {
            integer(coded.len(), 7, 0x80, out);
            return out.extend_from_slice(coded);
        }
        Form::Shorter if !octets.is_empty() => {
            let len = huffman::encoded_len(octets);
            if len <= octets.len() {
                integer(len, 7, 0x80, out);
                return huffman::encode(octets, out);
            }
        }
        Form::Shorter | Form::Plain => {}
    }
    integer(octets.len(), 7, 0, out);
    out.extend_from_slice(octets);
}

#[inline]
fn integer(value: usize, prefix: u8, pattern: u8, out: &mut Vec<u8>) {
    let mask = (1usize << prefix) - 1;
    if value < mask {
        return out.push(pattern | value as u8);
    }
    out.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}
