//! The server name in a TLS ClientHello (RFC 8446 §4.1.2, RFC 6066 §3), read from bytes that pass by.
//!
//! Nothing is kept back for it and nothing depends on it: it only names, for the user, a connection that cannot be read. A
//! hello may come in pieces of any size and in several records; of one that is longer than [`MAX_HELLO`] or that is none,
//! the name stays unknown.

/// Most bytes of a hello that are looked at. With post-quantum key shares it has about two thousand.
pub const MAX_HELLO: usize = 16 * 1024;

/// Content type of records that carry handshakes, and the first byte of every TLS connection.
const HANDSHAKE: u8 = 22;
/// Most bytes in a record (RFC 8446 §5.1).
const MAX_RECORD: usize = 1 << 14;
const CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// Longest name of a host (RFC 1035 §2.3.4), as text.
const MAX_NAME: usize = 253;

/// What the first bytes of a connection say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hello {
    /// More bytes are needed.
    More,
    /// No more are: the name of the server in lower case, if there is one to be read.
    Known(Option<String>),
}

/// Why reading stopped.
enum Stop {
    Short,
    Malformed,
}

/// What `bytes`, the first of a connection, say.
pub fn hello(bytes: &[u8]) -> Hello {
    let (handshake, all) = match handshake(&bytes[..bytes.len().min(MAX_HELLO)]) {
        Ok(read) => read,
        Err(Stop::Short) => (Vec::new(), false),
        Err(Stop::Malformed) => return Hello::Known(None),
    };
    match server_name(&handshake) {
        Ok(name) => Hello::Known(name),
        Err(Stop::Short) if !all && bytes.len() < MAX_HELLO => Hello::More,
        Err(_) => Hello::Known(None),
    }
}

/// The beginning of the first handshake message, out of its records; whether it is whole.
fn handshake(bytes: &[u8]) -> Result<(Vec<u8>, bool), Stop> {
    let mut message = Vec::new();
    let mut rest = bytes;
    while let Some((&kind, behind)) = rest.split_first() {
        // Major version 3 is SSL 3 and every TLS.
        if kind != HANDSHAKE || behind.first().is_some_and(|major| *major != 3) {
            return Err(Stop::Malformed);
        }
        let Some((header, body)) = behind.split_first_chunk::<4>() else { break };
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if length == 0 || length > MAX_RECORD {
            return Err(Stop::Malformed);
        }
        let here = body.len().min(length);
        message.extend_from_slice(&body[..here]);
        rest = &body[here..];
        if let Some([kind, length @ ..]) = message.first_chunk::<4>() {
            if *kind != CLIENT_HELLO {
                return Err(Stop::Malformed);
            }
            let whole = 4 + u32::from_be_bytes([0, length[0], length[1], length[2]]) as usize;
            if message.len() >= whole {
                message.truncate(whole);
                return Ok((message, true));
            }
        } else if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(Stop::Malformed);
        }
        if here < length {
            break;
        }
    }
    Ok((message, false))
}

/// Reads on, from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Stop::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, bytes: usize) -> Result<usize, Stop> {
        Ok(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// What has its length in front, in so many bytes.
    fn vector(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let length = self.number(length)?;
        self.take(length)
    }
}

/// The name in `message`, of which the end may be missing.
fn server_name(message: &[u8]) -> Result<Option<String>, Stop> {
    let mut reader = Reader(message);
    // Type and length, version, random; then session, cipher suites, compression methods.
    reader.take(4 + 2 + 32)?;
    reader.vector(1)?;
    reader.vector(2)?;
    reader.vector(1)?;
    let mut left = reader.number(2)?;
    while left > 0 {
        let kind = reader.number(2)?;
        let body = reader.vector(2)?;
        left = left.checked_sub(4 + body.len()).ok_or(Stop::Malformed)?;
        if kind != usize::from(EXTENSION_SERVER_NAME) {
            continue;
        }
        // The extension is whole: what is too short in it stays so.
        let malformed = |_| Stop::Malformed;
        let mut names = Reader(Reader(body).vector(2).map_err(malformed)?);
        while !names.0.is_empty() {
            let kind = names.number(1).map_err(malformed)?;
            let name = names.vector(2).map_err(malformed)?;
            if kind == usize::from(HOST_NAME) {
                return Ok(readable(name));
            }
        }
        return Ok(None);
    }
    Ok(None)
}

/// The name of a host as text that may be shown; none if it is no such name.
fn readable(name: &[u8]) -> Option<String> {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    let is_name = !name.is_empty() && name.len() <= MAX_NAME && name.iter().all(fits);
    is_name.then(|| String::from_utf8_lossy(name).to_ascii_lowercase())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vector(length: usize, body: &[u8]) -> Vec<u8> {
        let size = body.len().to_be_bytes();
        [&size[size.len() - length..], body].concat()
    }

    /// A ClientHello with these extensions, in records of at most `record` bytes.
    fn client_hello(extensions: &[(u16, Vec<u8>)], record: usize) -> Vec<u8> {
        let extensions: Vec<u8> =
            extensions.iter().flat_map(|(kind, body)| [&kind.to_be_bytes()[..], &vector(2, body)].concat()).collect();
        let body = [
            &[3, 3][..],
            &[7; 32],
            &vector(1, &[9; 32]),
            &vector(2, &[0x13, 1, 0x13, 2]),
            &vector(1, &[0]),
            &vector(2, &extensions),
        ]
        .concat();
        let message = [&[CLIENT_HELLO][..], &vector(3, &body)].concat();
        message.chunks(record).flat_map(|part| [&[HANDSHAKE, 3, 1][..], &vector(2, part)].concat()).collect()
    }

    fn named(name: &[u8]) -> (u16, Vec<u8>) {
        (EXTENSION_SERVER_NAME, vector(2, &[&[HOST_NAME][..], &vector(2, name)].concat()))
    }

    /// What a client that asks for `name` begins with.
    pub(crate) fn hello_for(name: &str) -> Vec<u8> {
        client_hello(&[(51, vec![0; 1200]), named(name.as_bytes()), (43, vec![2, 3, 4])], MAX_RECORD)
    }

    fn known(name: Option<&str>) -> Hello {
        Hello::Known(name.map(str::to_owned))
    }

    #[test]
    fn the_name_is_read_wherever_it_stands_and_however_the_hello_is_cut_into_records() {
        let first = [named(b"Shop.Example"), (43, vec![2, 3, 4])];
        let last = [(51, vec![0; 1200]), (16, vec![0, 2, 1, b'h']), named(b"Shop.Example")];
        for extensions in [&first[..], &last] {
            for record in [1, 3, 5, 100, MAX_RECORD] {
                assert_eq!(
                    hello(&client_hello(extensions, record)),
                    known(Some("shop.example")),
                    "records of {record}"
                );
            }
        }
    }

    #[test]
    fn what_has_no_name_or_is_none_is_known_to_have_none() {
        let list = |entries: &[u8]| client_hello(&[(EXTENSION_SERVER_NAME, vector(2, entries))], MAX_RECORD);
        for bytes in [
            client_hello(&[], MAX_RECORD),
            client_hello(&[(43, vec![2, 3, 4])], MAX_RECORD),
            client_hello(&[named(b"")], MAX_RECORD),
            client_hello(&[named(b"shop\x1b[2J")], MAX_RECORD),
            client_hello(&[named(&[b'a'; MAX_NAME + 1])], MAX_RECORD),
            client_hello(&[(EXTENSION_SERVER_NAME, vec![])], MAX_RECORD),
            client_hello(&[(EXTENSION_SERVER_NAME, vec![0, 9, 0])], MAX_RECORD),
            list(&[1, 0, 1, b'x']),
            list(&[0, 0, 9, b'x']),
            b"\x15\x03\x01\x00\x02\x02\x28".to_vec(),
            b"\x16\x02\x01".to_vec(),
            b"\x16\x03\x01\x00\x00".to_vec(),
            b"\x16\x03\x01\x40\x01".to_vec(),
            b"\x16\x03\x03\x00\x02\x02".to_vec(),
            b"GET /".to_vec(),
        ] {
            assert_eq!(hello(&bytes), known(None), "{bytes:?}");
        }
        assert_eq!(hello(b""), Hello::More);
    }

    #[test]
    fn what_is_looked_at_is_bounded() {
        let long = client_hello(&[(21, vec![0; 60_000]), named(b"shop")], MAX_RECORD);
        assert_eq!(hello(&long[..MAX_HELLO - 1]), Hello::More);
        assert_eq!(hello(&long[..MAX_HELLO]), known(None));
        assert_eq!(hello(&long), known(None));
    }

    proptest! {
        /// However it comes in pieces: unknown at first, then known for good, at the latest at its end.
        #[test]
        fn a_name_once_known_stays_known(
            name in "[a-z]{1,20}(\\.[a-z]{1,10}){0,3}",
            padding in 0..3000_usize,
            record in 1..2000_usize,
            name_first in any::<bool>(),
            behind in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let mut extensions = vec![(21, vec![0; padding]), named(name.as_bytes())];
            if name_first {
                extensions.reverse();
            }
            let whole = client_hello(&extensions, record);
            let bytes = [&whole[..], &behind].concat();
            let mut seen = Hello::More;
            for end in 0..=bytes.len() {
                let now = hello(&bytes[..end]);
                if seen != Hello::More {
                    prop_assert_eq!(&now, &seen);
                }
                seen = now;
                prop_assert!(end < whole.len() || seen != Hello::More);
            }
            prop_assert_eq!(seen, known(Some(&name)));
        }

        /// Whatever is sent, it ends and does not panic.
        #[test]
        fn any_bytes_are_read(start in prop_oneof![Just(&b"\x16\x03\x01"[..]), Just(&b""[..])],
            bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let bytes = [start, &bytes].concat();
            if let Hello::Known(Some(name)) = hello(&bytes) {
                prop_assert!(!name.is_empty() && name.is_ascii() && name.len() <= MAX_NAME);
            }
        }
    }
}
