//! The sidecars that are connected now.
//!
//! Each has an outbox; whoever sends does so under the lock of the hub, so that messages of different causes keep one
//! order. A sidecar that does not read is disconnected rather than waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aftershock_core::id::{ObserverId, Token};
use aftershock_core::name::Api;
use aftershock_core::wire::{self, Counters, FromController, Hello, Ordinary};
use tokio::sync::{Notify, mpsc};

use crate::api::SidecarStatus;
use crate::arming::Instances;

/// Messages that wait for a sidecar to read them, before it is given up.
const OUTBOX: usize = 4096;

/// One connected sidecar.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) hello: Hello,
    /// Tells this connection from an earlier one of the same process.
    connection: u64,
    outbox: mpsc::Sender<FromController>,
    kick: Arc<Notify>,
    pub(crate) counters: Counters,
    /// How many times it sent counters.
    pub(crate) reports: u64,
    /// The highest flush that it answered.
    pub(crate) flushed: u64,
    /// Spans it lost.
    pub(crate) lost: u64,
    /// Spans it lost, per round.
    pub(crate) lost_of: BTreeMap<Token, u64>,
}

/// The far end of an outbox, for the connection's task.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) connection: u64,
    pub(crate) messages: mpsc::Receiver<FromController>,
    /// The connection is to be closed, whatever is under way.
    pub(crate) kick: Arc<Notify>,
}

impl Connected {
    /// Put a message into its outbox.
    pub(crate) fn send(&self, message: FromController) {
        if self.outbox.try_send(message).is_err() {
            self.kick.notify_one();
        }
    }

    /// Whether this is the connection with that number.
    pub(crate) fn is(&self, connection: u64) -> bool {
        self.connection == connection
    }

    /// It says how it is. Returns the ordinary entry requests that ended since it last did; none at first, when nothing is
    /// known of when they were.
    pub(crate) fn report(&mut self, counters: Counters) -> Ordinary {
        let before = std::mem::replace(&mut self.counters, counters).ordinary;
        let now = self.counters.ordinary;
        self.reports += 1;
        if self.reports == 1 {
            return Ordinary::default();
        }
        Ordinary {
            requests: now.requests.saturating_sub(before.requests),
            errors: now.errors.saturating_sub(before.errors),
        }
    }

    pub(crate) fn unassociated(&self) -> &BTreeMap<Api, u64> {
        &self.counters.unassociated
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    sidecars: BTreeMap<ObserverId, Connected>,
    connections: u64,
}

impl Registry {
    /// Register a sidecar and tell the others. An earlier connection of the same process is closed; returns whether
    /// there was one.
    pub(crate) fn add(&mut self, hello: Hello) -> (Outgoing, bool) {
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let kick = Arc::new(Notify::new());
        self.connections += 1;
        let outgoing = Outgoing { connection: self.connections, messages, kick: Arc::clone(&kick) };
        let observer = hello.observer;
        let connected = Connected {
            hello,
            connection: self.connections,
            outbox,
            kick,
            counters: Counters::default(),
            reports: 0,
            flushed: 0,
            lost: 0,
            lost_of: BTreeMap::new(),
        };
        let earlier = self.sidecars.insert(observer, connected);
        if let Some(earlier) = &earlier {
            earlier.kick.notify_one();
        }
        self.tell_except(observer);
        (outgoing, earlier.is_some())
    }

    /// A connection ended. False if the sidecar has connected anew since.
    pub(crate) fn remove(&mut self, observer: ObserverId, connection: u64) -> bool {
        if self.sidecars.get(&observer).is_none_or(|connected| connected.connection != connection) {
            return false;
        }
        self.sidecars.remove(&observer);
        self.tell_except(observer);
        true
    }

    /// Forget everybody; each connection ends once its outbox is written.
    pub(crate) fn clear(&mut self) {
        self.sidecars.clear();
    }

    fn tell_except(&self, observer: ObserverId) {
        let registry = self.to_wire();
        for (other, connected) in &self.sidecars {
            if *other != observer {
                connected.send(FromController::Registry(registry.clone()));
            }
        }
    }

    /// As sidecars are told.
    pub(crate) fn to_wire(&self) -> wire::Registry {
        let mut registry = wire::Registry::default();
        // In the order of connection: where two claim one address, the later holds it.
        let mut sidecars: Vec<&Connected> = self.sidecars.values().collect();
        sidecars.sort_by_key(|connected| connected.connection);
        for connected in sidecars {
            let hello = &connected.hello;
            for address in &hello.inbound {
                registry.addresses.insert(address.clone(), hello.service.clone());
            }
            registry.excluded.extend(hello.excluded.iter().cloned());
            let templates = registry.templates.entry(hello.service.clone()).or_default();
            for template in &hello.templates {
                if !templates.contains(template) {
                    templates.push(template.clone());
                }
            }
            registry.services.insert(hello.service.clone());
        }
        registry.templates.retain(|_, templates| !templates.is_empty());
        registry
    }

    /// As arming sees it.
    pub(crate) fn instances(&self) -> Instances {
        let mut instances = Instances::default();
        for connected in self.sidecars.values() {
            let hello = &connected.hello;
            *instances.count.entry(hello.service.clone()).or_default() += 1;
            instances.callees.entry(hello.service.clone()).or_default().extend(hello.outbound.keys().cloned());
        }
        instances
    }

    pub(crate) fn get(&self, observer: ObserverId) -> Option<&Connected> {
        self.sidecars.get(&observer)
    }

    pub(crate) fn get_mut(&mut self, observer: ObserverId) -> Option<&mut Connected> {
        self.sidecars.get_mut(&observer)
    }

    pub(crate) fn observers(&self) -> BTreeSet<ObserverId> {
        self.sidecars.keys().copied().collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ObserverId, &Connected)> {
        self.sidecars.iter().map(|(observer, connected)| (*observer, connected))
    }

    /// By service, then by process.
    pub(crate) fn status(&self) -> Vec<SidecarStatus> {
        let mut list: Vec<SidecarStatus> = self
            .iter()
            .map(|(observer, connected)| SidecarStatus {
                service: connected.hello.service.clone(),
                observer,
                version: connected.hello.version.clone(),
                inbound: connected.hello.inbound.clone(),
                associations: connected.counters.associations.clone(),
                ignored: connected.counters.ignored.clone(),
                evidence: connected.counters.evidence.clone(),
                unseen: connected.counters.unseen.clone(),
                lost: connected.lost,
            })
            .collect();
        list.sort_by(|a, b| (&a.service, a.observer).cmp(&(&b.service, b.observer)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::service;

    fn hello(name: &str, observer: u64, inbound: &str) -> Hello {
        Hello {
            protocol: wire::PROTOCOL,
            version: "1".to_owned(),
            service: service(name),
            observer: ObserverId(observer),
            inbound: vec![inbound.to_owned()],
            excluded: vec![],
            outbound: [(service("payment"), vec!["127.0.0.1:9".to_owned()])].into(),
            templates: vec![format!("/{name}/{{id}}")],
        }
    }

    #[test]
    fn others_hear_of_each_change() {
        let mut registry = Registry::default();
        let (mut first, _) = registry.add(hello("cart", 1, "127.0.0.1:1"));
        let (second, _) = registry.add(hello("shop", 2, "127.0.0.1:2"));
        let FromController::Registry(told) = first.messages.try_recv().unwrap() else { panic!() };
        assert_eq!(told, registry.to_wire());
        assert_eq!(told.addresses["127.0.0.1:2"].as_str(), "shop");
        assert_eq!(told.templates[&service("cart")], ["/cart/{id}"]);
        assert!(registry.remove(ObserverId(2), second.connection));
        let FromController::Registry(told) = first.messages.try_recv().unwrap() else { panic!() };
        assert_eq!(told.services, [service("cart")].into());
    }

    #[tokio::test]
    async fn a_process_that_connects_anew_replaces_its_earlier_connection() {
        let mut registry = Registry::default();
        let (first, again) = registry.add(hello("cart", 1, "127.0.0.1:1"));
        assert!(!again);
        let (second, again) = registry.add(hello("cart", 1, "127.0.0.1:1"));
        assert!(again);
        first.kick.notified().await;
        assert!(!registry.remove(ObserverId(1), first.connection), "the end of the earlier one changes nothing");
        assert!(registry.get(ObserverId(1)).is_some());
        assert!(registry.remove(ObserverId(1), second.connection));
    }

    #[tokio::test]
    async fn a_sidecar_that_does_not_read_is_given_up() {
        let mut registry = Registry::default();
        let (outgoing, _) = registry.add(hello("cart", 1, "127.0.0.1:1"));
        for _ in 0..=OUTBOX {
            registry.get(ObserverId(1)).unwrap().send(FromController::Report);
        }
        outgoing.kick.notified().await;
    }

    #[test]
    fn the_later_holder_of_an_address_counts() {
        let mut registry = Registry::default();
        let _old = registry.add(hello("zebra", 9, "127.0.0.1:1"));
        let _new = registry.add(hello("ant", 1, "127.0.0.1:1"));
        assert_eq!(registry.to_wire().addresses["127.0.0.1:1"].as_str(), "ant");
        assert_eq!(registry.instances().count.len(), 2);
    }
}
