//! A network of hosts that are none: namespaces of the kernel, joined by a bridge.
//!
//! A [`PodNetwork`] is a bridge in a namespace of its own, the *switch*; each pod on it is a namespace with one interface,
//! `eth0`, and addresses of its own. Pods can be cut off from each other and can die as machines do, without a last word.
//!
//! * Nothing of it is in the host's namespace: no interface, address, route or rule. So addresses are always the same,
//!   networks never collide with each other or with the host, and what a host cannot reach it cannot disturb either.
//! * Namespaces are held by descriptors of this process alone. When it ends, however it ends, and the processes that it
//!   started inside have ended too, the kernel removes them with all that is in them. Nothing is ever left to clean up.
//! * A socket belongs to the namespace of the thread that made it, for good, whoever uses it afterwards; an accepted one
//!   to that of its listener. So one process can have sockets in many.

mod ip;
mod namespace;
mod pods;
mod relay;

pub use namespace::Namespace;
pub use pods::{Family, Pod, PodNetwork};
pub(crate) use relay::Gate;

/// Why there is no network, or why it did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A program is not installed.
    #[error("network namespaces need the program `{program}` (Debian package {package})")]
    Missing {
        /// Its name.
        program: &'static str,
        /// Where it comes from.
        package: &'static str,
    },
    /// This process may not make namespaces.
    #[error("network namespaces need root, with CAP_SYS_ADMIN and CAP_NET_ADMIN: {said}")]
    NotPermitted {
        /// What the refused program or the kernel said.
        said: String,
    },
    /// A program said no.
    #[error("`{program}` failed: {said}")]
    Failed {
        /// Its name.
        program: &'static str,
        /// What it said.
        said: String,
    },
    /// The system said no.
    #[error("cannot {doing}")]
    System {
        /// What it was asked.
        doing: String,
        /// Why.
        source: std::io::Error,
    },
    /// There is no such pod.
    #[error("{0}")]
    Unknown(String),
    /// Two pods of one name.
    #[error("there is a pod {0} already")]
    Twice(String),
    /// Every address is taken.
    #[error("a network has at most {most} pods")]
    Full {
        /// Pods that fit.
        most: u16,
    },
    /// A dead host cannot die.
    #[error("the host of {0} is dead")]
    Dead(String),
    /// A host that runs cannot be started.
    #[error("the host of {0} is not dead")]
    Alive(String),
}

impl NetError {
    fn system(doing: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::System { doing: doing.into(), source: source.into() }
    }
}
