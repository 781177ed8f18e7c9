//! HPACK, RFC 7541: the header compression of HTTP/2, for one direction of a connection.
//!
//! An editor decodes every block of one peer and encodes it again for the other, so what counts is to keep the sender's
//! choices: a field it put into its table goes into ours, a literal stays a literal, and a field that must never be
//! indexed is never indexed (RFC 7541 §6.2.3 binds intermediaries to that).
//!
//! Invariants: a decoder's memory is bounded by [`TABLE_LIMIT`] and the list limit it is given, whatever comes in; after
//! an error the tables of both sides differ and the connection must go (COMPRESSION_ERROR, RFC 9113 §4.3).

mod decoder;
mod encoder;
pub(crate) mod huffman;
mod table;

pub use decoder::Decoder;
pub use encoder::Encoder;

/// Default size of a dynamic table (RFC 9113 §6.5.2), and the largest this crate keeps.
pub const TABLE_LIMIT: usize = 4096;

/// Why a header block cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The block ends inside a field.
    #[error("header block ends inside a field")]
    Truncated,
    /// An integer of more than 28 bits.
    #[error("integer too large")]
    Integer,
    /// An index beyond both tables, or index 0.
    #[error("index {0} stands in neither table")]
    Index(usize),
    /// Not a Huffman-coded string.
    #[error("invalid Huffman-coded string")]
    Huffman,
    /// A dynamic table size update beyond what was allowed.
    #[error("table size update to {0} is not allowed")]
    SizeUpdate(usize),
    /// A dynamic table size update after the first field of the block.
    #[error("table size update after a field")]
    LateSizeUpdate,
    /// The decoded list is larger than the decoder's limit.
    #[error("header list exceeds {0} octets")]
    ListTooLarge(usize),
}

/// How a field is to be represented, beyond being found in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Indexing {
    /// Indexed, or a literal that enters the table (RFC 7541 §6.1, §6.2.1).
    Incremental,
    /// A literal that does not enter the table (§6.2.2).
    Without,
    /// A literal that no intermediary may enter into a table (§6.2.3).
    Never,
}

/// One field of a [`HeaderList`]: spans into its octets.
#[derive(Debug, Clone, Copy)]
struct Field {
    at: u32,
    name_len: u32,
    value_len: u32,
    indexing: Indexing,
    /// Index in the static table of the field or of its name, as the sender used it; 0 if it used none.
    fixed: u8,
    /// `fixed` stands for the whole field.
    whole: bool,
    /// Where the value's Huffman-coded form stands in [`HeaderList::coded`], and its length; 0 if it came as it is.
    coded_at: u32,
    coded_len: u32,
    /// Number of the entry of the sender's table that this field was a reference to.
    entry: Option<u32>,
}

/// A decoded header list: one buffer of octets and spans into it, to be filled again and again without allocation.
#[derive(Debug, Default, Clone)]
pub struct HeaderList {
    octets: Vec<u8>,
    /// Huffman-coded values as they came, to be sent on without coding them again.
    coded: Vec<u8>,
    fields: Vec<Field>,
}

impl HeaderList {
    /// Forget all fields, keep the memory.
    pub fn clear(&mut self) {
        self.octets.clear();
        self.coded.clear();
        self.fields.clear();
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Size as SETTINGS_MAX_HEADER_LIST_SIZE counts it: 32 octets per field, names and values.
    pub fn size(&self) -> usize {
        self.octets.len() + self.fields.len() * table::OVERHEAD
    }

    /// Name and value of field `index`; panics beyond [`HeaderList::len`].
    pub fn get(&self, index: usize) -> (&[u8], &[u8]) {
        let (octets, name_len) = self.octets(index);
        octets.split_at(name_len)
    }

    /// Octets of field `index`, the name first, and the length of the name.
    fn octets(&self, index: usize) -> (&[u8], usize) {
        let field = self.fields[index];
        (&self.octets[field.at as usize..][..(field.name_len + field.value_len) as usize], field.name_len as usize)
    }

    /// How the sender represented field `index`.
    pub fn indexing(&self, index: usize) -> Indexing {
        self.fields[index].indexing
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Append a field.
    pub fn push(&mut self, name: &[u8], value: &[u8], indexing: Indexing) {
        let at = self.octets.len() as u32;
        self.octets.extend_from_slice(name);
        self.octets.extend_from_slice(value);
        self.fields.push(Field {
            at,
            name_len: name.len() as u32,
            value_len: value.len() as u32,
            indexing,
            fixed: 0,
            whole: false,
            coded_at: 0,
            coded_len: 0,
            entry: None,
        });
    }
}

#[cfg(test)]
mod tests;
