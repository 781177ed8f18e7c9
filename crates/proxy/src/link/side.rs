//! One socket of a link: reading, writing, and the ways to end it.

use std::future::Future;
use std::io::{self, Read};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::exchange::{Fate, PeerEnd};

/// Most bytes read and thrown away after our FIN, so that the peer can read what was sent before.
const LINGER_BYTES: usize = 1024 * 1024;
/// Longest time for that.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// How often the kernel is asked whether it has sent everything, before a reset.
const UNSENT_PAUSE: Duration = Duration::from_millis(1);
/// How often at most; then the reset takes what is unsent with it.
const UNSENT_CHECKS: u32 = 2000;
/// An emptied buffer that grew beyond this is given back.
const KEEP_CAPACITY: usize = 16 * 1024;

/// A socket and what became of it.
pub(super) struct Side {
    /// `None` when it is closed, or not connected yet.
    stream: Option<TcpStream>,
    /// What was carried out.
    fate: Fate,
    /// The peer's end was told to the editor.
    pub(super) ended: bool,
    /// Writing failed; what there still is to read is read first.
    write_broken: bool,
    /// Readiness was cleared without reading, so bytes may be there that no event will announce.
    stale: bool,
    closing: Option<Closing>,
}

/// A close that takes its time.
struct Closing {
    timer: Pin<Box<Sleep>>,
    /// Bytes still to discard, or checks still to make.
    left: usize,
}

/// What came of an attempt to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Everything, or there was nothing.
    All,
    /// The socket takes no more now.
    Blocked,
    /// The socket is broken.
    Broken,
}

impl Side {
    pub(super) fn new(stream: Option<TcpStream>) -> Self {
        Self { stream, fate: Fate::Open, ended: false, write_broken: false, stale: false, closing: None }
    }

    pub(super) fn connected(&mut self, stream: TcpStream) {
        self.stream = Some(stream);
    }

    /// Whether bytes can come or go.
    pub(super) fn is_closed(&self) -> bool {
        self.stream.is_none()
    }

    /// Whether the editor is to hear of this socket any more.
    pub(super) fn is_heard(&self) -> bool {
        self.is_open() && !self.ended
    }

    /// Whether nobody has decided to close it yet.
    pub(super) fn is_open(&self) -> bool {
        self.stream.is_some() && matches!(self.fate, Fate::Open | Fate::Fin)
    }

    pub(super) fn write_broken(&self) -> bool {
        self.write_broken
    }

    pub(super) fn break_write(&mut self) {
        self.write_broken = true;
    }

    /// Closes at once.
    pub(super) fn close(&mut self) {
        self.stream = None;
        self.closing = None;
    }

    /// Closes at once with an RST, whatever is unsent.
    pub(super) fn reset(&mut self) {
        if let Some(stream) = &self.stream {
            let _ = stream.set_zero_linger();
        }
        self.close();
    }

    /// Reads once. `Ok(0)` is the peer's end.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        while self.stale {
            match (&mut &*SockRef::from(&*stream)).read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.stale = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return Poll::Ready(read),
            }
        }
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Waits for the peer's end without reading what lies before it.
    pub(super) fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<PeerEnd> {
        let Some(stream) = &self.stream else { return Poll::Pending };
        loop {
            if ready!(stream.poll_read_ready(cx)).is_err() {
                return Poll::Ready(PeerEnd::Broken);
            }
            let readiness = match pin!(stream.ready(Interest::READABLE)).poll(cx) {
                Poll::Ready(Ok(readiness)) => readiness,
                Poll::Ready(Err(_)) => return Poll::Ready(PeerEnd::Broken),
                Poll::Pending => {
                    // It is ready, but the task has used up its turn: the waker of a future that is dropped is lost.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            };
            if readiness.is_read_closed() {
                let error = stream.take_error();
                return Poll::Ready(if matches!(error, Ok(None)) { PeerEnd::Eof } else { PeerEnd::Broken });
            }
            let cleared = stream.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
            debug_assert!(cleared.is_err());
            self.stale = true;
        }
    }

    /// Writes as much of `bytes` as the socket takes.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &mut BytesMut) -> Written {
        let Some(stream) = &mut self.stream else { return Written::Blocked };
        while !bytes.is_empty() {
            match Pin::new(&mut *stream).poll_write(cx, bytes) {
                Poll::Ready(Ok(written)) => bytes.advance(written),
                Poll::Ready(Err(error)) => {
                    tracing::trace!(%error, "cannot write");
                    return Written::Broken;
                }
                Poll::Pending => return Written::Blocked,
            }
        }
        if bytes.capacity() > KEEP_CAPACITY {
            *bytes = BytesMut::new();
        } else {
            bytes.clear();
        }
        Written::All
    }

    /// Carries out a fate behind everything that was written; whether anything changed. `buffer` is scratch space.
    pub(super) fn poll_fate(&mut self, cx: &mut Context<'_>, fate: Fate, buffer: &mut [u8]) -> bool {
        let Some(stream) = &self.stream else { return false };
        match fate {
            Fate::Open => false,
            Fate::Fin => {
                let first = self.fate == Fate::Open;
                if first {
                    self.fin();
                }
                let over = self.ended;
                if over {
                    self.close();
                }
                first || over
            }
            Fate::Linger => {
                if self.fate == Fate::Linger {
                    return self.poll_discard(cx, buffer);
                }
                self.fin();
                self.fate = Fate::Linger;
                self.closing = Some(Closing { timer: Box::pin(tokio::time::sleep(LINGER_TIME)), left: LINGER_BYTES });
                true
            }
            Fate::Close => {
                self.close();
                true
            }
            Fate::Reset => {
                if self.fate != Fate::Reset {
                    self.fate = Fate::Reset;
                    // From now on the socket counts as writable only when nothing is left to send.
                    let _ = SockRef::from(stream).set_tcp_notsent_lowat(1);
                    self.closing = Some(Closing {
                        timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
                        left: UNSENT_CHECKS as usize,
                    });
                }
                self.poll_reset(cx)
            }
        }
    }

    /// Ends our direction.
    fn fin(&mut self) {
        if self.fate == Fate::Open
            && let Some(stream) = &self.stream
        {
            // It fails only where the connection is broken, which reading will tell.
            let _ = SockRef::from(stream).shutdown(std::net::Shutdown::Write);
            self.fate = Fate::Fin;
        }
    }

    /// Reads and throws away until the peer's end, a limit or the deadline.
    fn poll_discard(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> bool {
        let expired = self.closing.as_mut().is_none_or(|closing| closing.timer.as_mut().poll(cx).is_ready());
        if expired || self.ended {
            self.close();
            return true;
        }
        match self.poll_read(cx, buffer) {
            Poll::Pending => return false,
            Poll::Ready(Ok(read)) if read > 0 => {
                if let Some(closing) = &mut self.closing {
                    closing.left = closing.left.saturating_sub(read);
                    if closing.left > 0 {
                        return true;
                    }
                }
            }
            Poll::Ready(_) => {}
        }
        self.close();
        true
    }

    /// Resets once the kernel has sent what was written: an RST throws away what it still keeps.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let (Some(stream), Some(closing)) = (&self.stream, &mut self.closing) else { return false };
            if closing.left > 0 && !has_sent_all(stream) {
                if closing.timer.as_mut().poll(cx).is_pending() {
                    return false;
                }
                closing.left -= 1;
                closing.timer.as_mut().reset(tokio::time::Instant::now() + UNSENT_PAUSE);
                continue;
            }
            self.reset();
            return true;
        }
    }
}

/// Whether nothing waits to be sent. Needs the low-water mark of unsent bytes to be 1; errors count as sent.
fn has_sent_all(stream: &TcpStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut fds, Some(&now)) {
        Ok(_) => !fds[0].revents().is_empty(),
        Err(_) => true,
    }
}
