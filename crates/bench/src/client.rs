//! One end of a connection under load, without sockets: octets in, octets out.

use std::fmt;
use std::time::Instant;

use crate::message::Answer;
use crate::traffic::Context;

/// A request that is about to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    /// Tells it from all others.
    pub(crate) tag: u64,
    pub(crate) answer: Answer,
    /// When it was due: what its latency counts from.
    pub(crate) since: Instant,
}

/// Why an exchange failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wrong(pub(crate) &'static str);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Wrong {}

/// The client's end of one connection.
pub(crate) trait Client {
    /// Whether another request may be sent now.
    fn has_room(&self) -> bool;
    /// Whether no answer is awaited.
    fn is_idle(&self) -> bool;
    /// Writes a request. There must be room.
    fn send(&mut self, ticket: Ticket, context: &Context, output: &mut Vec<u8>);
    /// Reads what has come, calls `answered` for each request that was answered, with when it was due, and writes what
    /// the protocol asks for. How many octets were taken.
    fn take(&mut self, input: &[u8], output: &mut Vec<u8>, answered: &mut dyn FnMut(Instant)) -> Result<usize, Wrong>;
}
