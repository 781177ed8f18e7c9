//! Two sidecars as they run: the caller's before the callee's, registered with the same keys.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use aftershock_core::hop::{HopKey, Keyring};
use aftershock_core::id::ObserverId;
use aftershock_core::name::Service;
use aftershock_core::wire::{FromController, PROTOCOL, Registry};
use aftershock_proxy::config::Config;
use aftershock_proxy::exchange::Decider;
use aftershock_proxy::sidecar::Sidecar as Brain;

use super::sidecar::Sidecar;

/// An application's way to a callee with a sidecar at either end.
pub(crate) struct Chain {
    pub(crate) address: SocketAddr,
    _caller: Sidecar,
    _callee: Sidecar,
}

impl Chain {
    pub(crate) fn start(origin: SocketAddr) -> Self {
        let callee = Sidecar::start(&[origin], move |listen| {
            brain(&format!("service: back\ninbound:\n  - listen: {listen}\n    to: {origin}\n"), listen, 1)
        });
        let back = callee.address;
        let caller = Sidecar::start(&[back], move |listen| {
            let text =
                format!("service: front\noutbound:\n  - listen: {listen}\n    callee: back\n    to: [\"{back}\"]\n");
            brain(&text, back, 2)
        });
        Self { address: caller.address, _caller: caller, _callee: callee }
    }
}

fn brain(text: &str, back: SocketAddr, observer: u64) -> Rc<RefCell<dyn Decider>> {
    let text = format!("apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\n{text}");
    let config = Config::parse("test.yaml", &text).expect("a well-formed configuration");
    let mut last = observer << 32;
    let random = move || {
        last += 1;
        last
    };
    let mut brain = Brain::new(config, ObserverId(observer), Box::new(random), Box::new(|| 0));
    let service = |name: &str| name.parse::<Service>().expect("a name");
    let registry = Registry {
        addresses: BTreeMap::from([(back.to_string(), service("back"))]),
        templates: BTreeMap::new(),
        services: BTreeSet::from([service("back"), service("front")]),
        ..Registry::default()
    };
    let welcome = FromController::Welcome {
        protocol: PROTOCOL,
        version: "0".into(),
        keys: Keyring(vec![HopKey { id: 1, secret: [7; 16] }]),
        registry,
        late: Vec::new(),
    };
    brain.on_control(welcome, Instant::now());
    Rc::new(RefCell::new(brain))
}
