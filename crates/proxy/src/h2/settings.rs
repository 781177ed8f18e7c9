//! SETTINGS (RFC 9113 §6.5): what each peer announced, and from when on it holds.
//!
//! SETTINGS frames and their acknowledgements pass end to end; the sidecar sends none of its own. It does as the two ends
//! do: what a receiver announced holds from the moment the acknowledgement passes by. Two values are changed in flight:
//! SETTINGS_HEADER_TABLE_SIZE is clamped to what our decoder holds (a peer must not choose this process's memory), and
//! SETTINGS_ENABLE_PUSH of the application is 0, because a pushed response has no request that could be associated.

use std::collections::VecDeque;

use bytes::{BufMut, BytesMut};

use super::flow::MAX_WINDOW;
use super::frame::{PIECE, Violation, code};
use crate::hpack::TABLE_LIMIT;

/// Unacknowledged SETTINGS frames kept per peer; beyond that it is a flood (CVE-2019-9515).
const MAX_PENDING: usize = 64;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// The values of one SETTINGS frame that matter here.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announced {
    /// The smallest and the last table size in the frame (RFC 7541 §4.2).
    pub(crate) table: Option<(usize, usize)>,
    pub(crate) window: Option<i64>,
    pub(crate) max_frame: Option<usize>,
    pub(crate) max_list: Option<u32>,
    pub(crate) max_streams: Option<u32>,
}

/// The settings of one peer.
#[derive(Debug)]
pub(crate) struct Settings {
    /// A first SETTINGS frame has come: it completes the peer's preface.
    pub(crate) begun: bool,
    pending: VecDeque<Announced>,
    pub(crate) max_frame: usize,
    pub(crate) max_list: Option<u32>,
    pub(crate) max_streams: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { begun: false, pending: VecDeque::new(), max_frame: PIECE, max_list: None, max_streams: None }
    }
}

impl Settings {
    /// Nothing that was announced is still unacknowledged, so the other side is bound by what is known here.
    pub(crate) fn settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// Read the payload of a SETTINGS frame and append what is to be passed on to `out`. `no_push` for the application.
    pub(crate) fn announce(
        &mut self,
        payload: &[u8],
        no_push: bool,
        out: &mut BytesMut,
    ) -> Result<Announced, Violation> {
        let (entries, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(Violation::size("SETTINGS of a length that six does not divide"));
        }
        let mut announced = Announced::default();
        let mut push_named = false;
        for [a, b, value @ ..] in entries {
            let id = u16::from_be_bytes([*a, *b]);
            let mut value = u32::from_be_bytes(*value);
            match id {
                HEADER_TABLE_SIZE => {
                    value = value.min(TABLE_LIMIT as u32);
                    let size = value as usize;
                    let smallest = announced.table.map_or(size, |(smallest, _)| smallest.min(size));
                    announced.table = Some((smallest, size));
                }
                ENABLE_PUSH if value > 1 => return Err(Violation::protocol("SETTINGS_ENABLE_PUSH beyond 1")),
                ENABLE_PUSH if no_push => {
                    push_named = true;
                    value = 0;
                }
                MAX_CONCURRENT_STREAMS => announced.max_streams = Some(value),
                INITIAL_WINDOW_SIZE if i64::from(value) > MAX_WINDOW => {
                    return Err(Violation::new(code::FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE beyond 2^31-1"));
                }
                INITIAL_WINDOW_SIZE => announced.window = Some(value.into()),
                MAX_FRAME_SIZE if !(PIECE..1 << 24).contains(&(value as usize)) => {
                    return Err(Violation::protocol("SETTINGS_MAX_FRAME_SIZE out of range"));
                }
                MAX_FRAME_SIZE => announced.max_frame = Some(value as usize),
                MAX_HEADER_LIST_SIZE => announced.max_list = Some(value),
                _ => {}
            }
            out.put_u16(id);
            out.put_u32(value);
        }
        if no_push && !push_named && !self.begun {
            out.put_u16(ENABLE_PUSH);
            out.put_u32(0);
        }
        self.begun = true;
        if self.pending.len() == MAX_PENDING {
            return Err(Violation::calm("too many unacknowledged SETTINGS"));
        }
        self.pending.push_back(announced);
        Ok(announced)
    }

    /// The other side acknowledged the oldest frame: it holds from now on. `None` if none was outstanding.
    pub(crate) fn acknowledged(&mut self) -> Option<Announced> {
        let announced = self.pending.pop_front()?;
        self.max_frame = announced.max_frame.unwrap_or(self.max_frame);
        self.max_list = announced.max_list.or(self.max_list);
        self.max_streams = announced.max_streams.or(self.max_streams);
        Some(announced)
    }
}
