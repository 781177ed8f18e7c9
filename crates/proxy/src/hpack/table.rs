//! The two tables of RFC 7541 §2.3: the static one, and the dynamic one as decoder and encoder both keep it.

use std::collections::VecDeque;

/// RFC 7541 appendix A; index 1 is the first entry.
#[rustfmt::skip]
pub(crate) const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];

/// What an entry costs beside its octets (RFC 7541 §4.1).
pub(crate) const OVERHEAD: usize = 32;

/// A 32-bit hash that is good enough to skip unequal entries; equality is always checked on the octets.
pub(crate) const fn hash(bytes: &[u8]) -> u32 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = (bytes.len() as u64).wrapping_mul(K);
    let mut rest = bytes;
    while let Some((chunk, after)) = rest.split_first_chunk::<8>() {
        state = (state.rotate_left(23) ^ u64::from_le_bytes(*chunk)).wrapping_mul(K);
        rest = after;
    }
    let mut tail = 0;
    while let Some((byte, after)) = rest.split_first() {
        tail = tail << 8 | *byte as u64;
        rest = after;
    }
    state = (state.rotate_left(23) ^ tail).wrapping_mul(K);
    (state ^ state >> 29) as u32
}

/// Open addressing from a name's hash to its first index in the static table; 0 is a free slot.
static NAMES: [u8; 256] = names();

const fn names() -> [u8; 256] {
    let mut slots = [0; 256];
    let mut at = 0;
    while at < STATIC.len() {
        let name = STATIC[at].0.as_bytes();
        if at == 0 || !same(name, STATIC[at - 1].0.as_bytes()) {
            let mut slot = hash(name) as u8;
            while slots[slot as usize] != 0 {
                slot = slot.wrapping_add(1);
            }
            slots[slot as usize] = at as u8 + 1;
        }
        at += 1;
    }
    slots
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// First index of `name` in the static table.
pub(crate) fn static_name(name: &[u8]) -> Option<u8> {
    let mut slot = hash(name) as u8;
    loop {
        match NAMES[slot as usize] {
            0 => return None,
            index if STATIC[index as usize - 1].0.as_bytes() == name => return Some(index),
            _ => slot = slot.wrapping_add(1),
        }
    }
}

/// Index of the whole field in the static table, given the first index of its name.
pub(crate) fn static_value(first: u8, value: &[u8]) -> Option<u8> {
    let name = STATIC[first as usize - 1].0;
    STATIC[first as usize - 1..]
        .iter()
        .take_while(|(n, _)| *n == name)
        .position(|(_, v)| v.as_bytes() == value)
        .map(|offset| first + offset as u8)
}

#[derive(Debug, Default)]
struct Entry {
    octets: Vec<u8>,
    name_len: usize,
}

impl Entry {
    fn parts(&self) -> (&[u8], &[u8]) {
        self.octets.split_at(self.name_len)
    }
}

/// The dynamic table (RFC 7541 §2.3.2, §4), newest entry first. Relative index 0 is HPACK index 62.
#[derive(Debug)]
pub(crate) struct Dynamic {
    entries: VecDeque<Entry>,
    /// Per entry the hash of its name and of its value, for [`Dynamic::find`]; zeros where nobody searches.
    tags: VecDeque<(u32, u32)>,
    /// Buffers of evicted entries, to be filled again.
    spare: Vec<Vec<u8>>,
    size: usize,
    max: usize,
    /// Entries ever inserted, modulo 2³²: numbers them.
    inserted: u32,
}

impl Dynamic {
    pub(crate) fn new(max: usize) -> Self {
        Self { entries: VecDeque::new(), tags: VecDeque::new(), spare: Vec::new(), size: 0, max, inserted: 0 }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.evict(0);
    }

    pub(crate) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        self.entries.get(index).map(Entry::parts)
    }

    /// The number of the entry at `index`: it stays with the entry, while the index changes with every insertion.
    pub(crate) fn number(&self, index: usize) -> u32 {
        self.inserted.wrapping_sub(1 + index as u32)
    }

    /// Where the entry with this number is, if it is still there and is this very field.
    pub(crate) fn numbered(&self, number: u32, octets: &[u8], name_len: usize) -> Option<usize> {
        let index = self.inserted.wrapping_sub(1).wrapping_sub(number) as usize;
        let entry = self.entries.get(index)?;
        (entry.name_len == name_len && entry.octets == octets).then_some(index)
    }

    fn evict(&mut self, room_for: usize) {
        while self.size + room_for > self.max {
            let Some(entry) = self.entries.pop_back() else { return };
            self.tags.pop_back();
            self.size -= entry.octets.len() + OVERHEAD;
            if self.spare.len() < 8 {
                self.spare.push(entry.octets);
            }
        }
    }

    /// RFC 7541 §4.4: an entry larger than the table empties it and is not kept.
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8], tag: (u32, u32)) {
        let size = name.len() + value.len() + OVERHEAD;
        self.evict(size);
        if size > self.max {
            return;
        }
        let mut octets = self.spare.pop().unwrap_or_default();
        octets.clear();
        octets.extend_from_slice(name);
        octets.extend_from_slice(value);
        self.entries.push_front(Entry { octets, name_len: name.len() });
        self.tags.push_front(tag);
        self.inserted = self.inserted.wrapping_add(1);
        self.size += size;
    }

    /// Relative index of the whole field, or of the newest entry with its name.
    pub(crate) fn find(&self, name: &[u8], value: &[u8], tag: (u32, u32)) -> Found {
        let mut named = None;
        for (index, candidate) in self.tags.iter().enumerate() {
            if candidate.0 != tag.0 {
                continue;
            }
            let (n, v) = self.entries[index].parts();
            if n != name {
                continue;
            }
            if candidate.1 == tag.1 && v == value {
                return Found::Field(index);
            }
            named = named.or(Some(index));
        }
        named.map_or(Found::Nothing, Found::Name)
    }
}

/// Result of [`Dynamic::find`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Field(usize),
    Name(usize),
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_lookup_agrees_with_a_scan() {
        for (index, (name, value)) in STATIC.iter().enumerate() {
            let first = STATIC.iter().position(|(n, _)| n == name).unwrap() as u8 + 1;
            assert_eq!(static_name(name.as_bytes()), Some(first));
            assert_eq!(static_value(first, value.as_bytes()), Some(index as u8 + 1));
        }
        for name in ["", "x", ":", "grpc-status", "accept-", "content-typf"] {
            assert_eq!(static_name(name.as_bytes()), None);
        }
        assert_eq!(static_value(8, b"418"), None);
    }
}
