//! Channels that are cut: which links break, which are refused, for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use aftershock_core::id::Token;
use aftershock_core::wire::{CutConnections, FromController, FromSidecar, Registry};

use crate::exchange::{Decider as _, Door, LinkId};
use crate::sidecar::testing::*;

const LEASE: Duration = Duration::from_secs(10);

/// Checkout with its listeners to payment and to stock, in this order; payment is cut off from it.
fn cut() -> Net {
    let mut net = Net::configured(&[("checkout", "")], &["payment", "stock"]);
    net.register(&["checkout"]);
    net.arm_with(&[], &[], |arm| arm.cuts = ["payment".parse().unwrap()].into());
    net
}

/// Whether a new connection to each of the two would be refused.
fn refused(net: &mut Net) -> [bool; 2] {
    let sidecar = net.sidecar("checkout");
    [0, 1].map(|listener| {
        let link = sidecar.opened(Door::Outbound(listener));
        let cut = sidecar.is_cut(link);
        sidecar.gone(link);
        cut
    })
}

#[test]
fn open_links_of_the_channel_break_once_and_new_ones_are_refused() {
    let mut net = cut();
    // Its first three links lead to the application, to payment and to stock.
    assert_eq!(net.sidecar("checkout").take_cuts(), [LinkId(2)]);
    assert_eq!(refused(&mut net), [true, false]);
    net.arm_with(&[], &[], |arm| arm.cuts = ["payment".parse().unwrap()].into());
    assert_eq!(net.sidecar("checkout").take_cuts(), [], "what is broken stays so");
    let inbound = net.sidecar("checkout").opened(Door::Inbound(0));
    assert!(!net.sidecar("checkout").is_cut(inbound));
}

#[test]
fn a_cut_ends_with_disarming_with_the_lease_and_with_the_process() {
    let disarmed: fn(&mut Net) = |net| net.tell("checkout", FromController::Disarm { token: ROUND });
    let lapsed: fn(&mut Net) = |net| net.pass_time(LEASE);
    let ended: fn(&mut Net) = |net| net.tell("checkout", FromController::End { token: ROUND });
    let stopped: fn(&mut Net) = |net| net.sidecar("checkout").shutdown();
    for end in [disarmed, lapsed, ended, stopped] {
        let mut net = cut();
        net.pass_time_renewing(LEASE * 3);
        assert_eq!(refused(&mut net), [true, false]);
        end(&mut net);
        assert_eq!(refused(&mut net), [false, false]);
    }
}

#[test]
fn what_met_a_cut_is_told_before_the_disarming_is_confirmed() {
    let mut net = cut();
    refused(&mut net);
    refused(&mut net);
    // Armed anew, as where ordinary traffic is tagged: what was counted stays.
    net.arm_with(&[], &[], |arm| arm.cuts = ["payment".parse().unwrap()].into());
    net.tell("checkout", FromController::Disarm { token: ROUND });
    refused(&mut net);
    let met = CutConnections { broken: 1, refused: 2 };
    let cut = FromSidecar::Cut { token: ROUND, connections: [("payment".parse().unwrap(), met)].into() };
    let said: Vec<FromSidecar> =
        net.said("checkout").into_iter().filter(|word| !matches!(word, FromSidecar::Activity { .. })).collect();
    assert_eq!(said, [cut, FromSidecar::Disarmed { token: ROUND }]);
}

#[test]
fn a_channel_that_two_rounds_cut_is_healed_by_the_later_end() {
    let mut net = cut();
    let other = Token(0xbee);
    net.arm_with(&[], &[], |arm| {
        arm.token = other;
        arm.cuts = ["payment", "stock"].map(|name| name.parse().unwrap()).into();
    });
    assert_eq!(net.sidecar("checkout").take_cuts(), [LinkId(2), LinkId(3)]);
    assert_eq!(refused(&mut net), [true, true]);
    net.tell("checkout", FromController::Disarm { token: other });
    assert_eq!(refused(&mut net), [true, false]);
    net.tell("checkout", FromController::Disarm { token: ROUND });
    assert_eq!(refused(&mut net), [false, false]);
}

#[test]
fn a_redirected_link_breaks_once_it_is_known_who_is_behind_its_address() {
    let mut net = cut();
    net.sidecar("checkout").take_cuts();
    let behind = Door::RedirectedOut("10.1.0.7:443".parse().unwrap());
    let link = net.sidecar("checkout").opened(behind);
    assert!(!net.sidecar("checkout").is_cut(link));
    let addresses = BTreeMap::from([("10.1.0.7:0".to_owned(), "payment".parse().unwrap())]);
    let registry = Registry { addresses, services: ["payment".parse().unwrap()].into(), ..Registry::default() };
    net.tell("checkout", FromController::Registry(registry));
    assert_eq!(net.sidecar("checkout").take_cuts(), [link]);
    let later = net.sidecar("checkout").opened(behind);
    assert!(net.sidecar("checkout").is_cut(later));
}
