//! The application of `front`, played by the test: requests of the round have come in, and it calls `back` for them.

use std::net::{SocketAddr, TcpListener};

use super::brain::{Controller, Front, TOKEN};
use super::http2::{Fields, Http2};
use super::sidecar::Sidecar;

/// The application with its sidecar.
pub(crate) struct Application {
    /// Whoever tells its sidecar what to do.
    pub(crate) controller: Controller,
    /// Where it calls `back`.
    pub(crate) way_out: SocketAddr,
    client: Http2,
    server: Http2,
    _front: Sidecar,
}

/// A request that it has not answered yet: an execution.
pub(crate) struct Entry {
    stream: u32,
    /// What it hands on to whom it calls.
    pub(crate) context: Fields,
}

impl Application {
    /// Its connections to `back` go to these replicas in turn.
    pub(crate) fn calling(backs: &[SocketAddr]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (front, controller) = Front::calling(backs).before(address).told();
        let client = Http2::connect(front.address);
        let server = Http2::accept(&listener);
        Self { controller, way_out: front.addresses[1], client, server, _front: front }
    }

    /// A request of the round comes in.
    pub(crate) fn enter(&mut self) -> Entry {
        let stream = self.client.open("GET", "/page", &[("tracestate", &format!("aft=1-0-0-{TOKEN}-0"))], true);
        // There is one upstream connection for this one, and nothing else on either.
        let seen = self.server.ended(stream);
        let handed_on = |name: &str| (name.to_owned(), seen.field(name).expect("the sidecar wrote it").to_owned());
        Entry { stream, context: ["traceparent", "tracestate"].map(handed_on).to_vec() }
    }

    /// It answers.
    pub(crate) fn leave(&mut self, entry: &Entry) {
        self.server.head(entry.stream, &[(":status", "200")], true);
        assert_eq!(self.client.ended(entry.stream).field(":status"), Some("200"));
    }
}

impl Entry {
    /// The context as the field lines of HTTP/1.
    pub(crate) fn lines(&self) -> String {
        self.context.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect()
    }

    /// The context behind further fields of HTTP/2.
    pub(crate) fn behind<'a>(&'a self, further: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let context = self.context.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        further.iter().copied().chain(context).collect()
    }
}
