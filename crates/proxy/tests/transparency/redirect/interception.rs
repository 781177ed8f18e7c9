//! Real sidecars in pods, to which the kernel redirects connections of applications that know nothing of it.
//!
//! The yardstick is the same exchange before there are rules and sidecars.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use aftershock_lab::net::{Family, Namespace, PodNetwork};

use crate::support::pods::{Beside, Configured, addresses, connect, inside, listen, network, proxy, succeed};
use crate::support::wire::{Ended, Origin, Seen, Step, follow, send, until};

const FAMILIES: [Family; 3] = [Family::V4, Family::V6, Family::Dual];
const GET: &str = "GET /stock HTTP/1.1\r\nHost: stock\r\nConnection: close\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// A client's and a server's script, in the namespaces where they stand; what both saw.
fn exchange(from: &Namespace, to: &Namespace, address: SocketAddr, scripts: &(Vec<Step>, Vec<Step>)) -> (Seen, Seen) {
    let origin = Origin::on(listen(to, address), vec![scripts.1.clone()]);
    let seen = follow(connect(from, address), &scripts.0);
    (seen, origin.seen().remove(0))
}

fn http() -> (Vec<Step>, Vec<Step>) {
    (vec![send(GET), Step::End], vec![until("\r\n\r\n"), send(OK)])
}

/// Two pods with sidecars.
struct Shop {
    network: PodNetwork,
    shop: Namespace,
    stock: Namespace,
    sidecars: [Beside; 2],
}

impl Shop {
    fn open(test: &str, family: Family, transparent: &str) -> Option<Shop> {
        let network = network(test, family, &["shop", "stock"])?;
        let (shop, stock) = (inside(&network, "shop"), inside(&network, "stock"));
        let sidecars = [Beside::start(&shop, "shop", transparent), Beside::start(&stock, "stock", transparent)];
        Some(Shop { network, shop, stock, sidecars })
    }

    /// Connections out of the shop's sidecar, into the stock's, and opaque ones at either.
    fn counted(&self) -> [u64; 4] {
        let [shop, stock] = self.sidecars.each_ref().map(Beside::counted);
        [shop[1], stock[0], shop[2], stock[2]]
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(addresses(&self.network, "stock")[0], port)
    }
}

#[test]
fn applications_that_know_nothing_talk_through_both_sidecars() {
    let test = "applications_that_know_nothing_talk_through_both_sidecars";
    for family in FAMILIES {
        let Some(shop) = Shop::open(test, family, "{}") else { return };
        for (calls, ip) in (1..).zip(addresses(&shop.network, "stock")) {
            let seen = exchange(&shop.shop, &shop.stock, SocketAddr::new(ip, 8080), &http());
            assert_eq!((seen.0.text().as_str(), seen.1.text().as_str()), (OK, GET), "{ip}");
            assert_eq!(shop.counted(), [calls, calls, 0, 0], "{ip}");
        }
    }
}

#[test]
fn what_is_not_http_passes_at_once_with_each_end_on_its_own() {
    let test = "what_is_not_http_passes_at_once_with_each_end_on_its_own";
    let Some(bare) = network(test, Family::V4, &["shop", "stock"]) else { return };
    let Some(shop) = Shop::open(test, Family::V4, "{}") else { return };
    let hello = "\x16\x03\x01\x00\x05hello";
    let cases = [
        // The server speaks first.
        (
            vec![until("mysql"), send([0x85, 0xa6]), Step::Fin, Step::End],
            vec![send("J\0\0\0\x0a8.0-mysql"), until("\u{6}"), Step::End],
        ),
        (
            vec![
                until("220 ready\r\n"),
                send("EHLO c\r\n"),
                until("250 ok\r\n"),
                Step::Fin,
                until("221 bye"),
                Step::End,
            ],
            vec![send("220 ready\r\n"), until("EHLO c\r\n"), send("250 ok\r\n"), Step::End, send("221 bye")],
        ),
        // TLS; DNS over TCP; Redis, where a subscriber is sent what it did not ask for; memcached.
        (vec![send(hello), until("\x16"), Step::End], vec![until("hello"), send("\x16\x03\x03")]),
        (
            vec![send("\0\x06\x12\x34\x01\0\0\x01"), until("answer"), Step::Fin, Step::End],
            vec![until("\x12"), send("\0\x06answer"), Step::End],
        ),
        (
            vec![
                send("SUBSCRIBE news\r\n"),
                until("subscribed"),
                until("first"),
                until("second"),
                Step::Fin,
                Step::End,
            ],
            vec![until("news\r\n"), send("+subscribed\r\n"), send("first"), send("second"), Step::End],
        ),
        (
            vec![send("get a\r\n"), until("END\r\n"), Step::Fin, Step::End],
            vec![until("\r\n"), send("END\r\n"), Step::End],
        ),
        // No line, and a word with which a request might begin.
        (
            vec![send("HELO without a line"), until("hello"), Step::Fin, Step::End],
            vec![until("line"), send("hello"), Step::End],
        ),
        // The server's end passes alone; nobody says anything; a reset.
        (
            vec![send("\0a"), Step::End, send("still here"), Step::Fin],
            vec![until("a"), Step::Fin, until("still here"), Step::End],
        ),
        (vec![Step::Fin, Step::End], vec![Step::End]),
        (vec![send("\0"), until("x"), Step::End], vec![until("\0"), send("x"), Step::Reset]),
    ];
    for (number, scripts) in (1..).zip(&cases) {
        let scripts = (scripts.0.clone(), scripts.1.clone());
        let direct = exchange(&inside(&bare, "shop"), &inside(&bare, "stock"), shop.at(3306), &scripts);
        let through = exchange(&shop.shop, &shop.stock, shop.at(3306), &scripts);
        assert_eq!(through, direct, "case {number}");
        assert_eq!(shop.counted(), [number; 4], "case {number}");
    }
}

#[test]
fn an_application_that_calls_itself_is_left_alone() {
    let test = "an_application_that_calls_itself_is_left_alone";
    for family in FAMILIES {
        let Some(shop) = Shop::open(test, family, "{}") else { return };
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        let usable = loopback.into_iter().filter(|ip| ip.is_ipv4() || family != Family::V4);
        for ip in usable.chain(addresses(&shop.network, "stock")) {
            let seen = exchange(&shop.stock, &shop.stock, SocketAddr::new(ip, 8080), &http());
            assert_eq!(seen.0.text(), OK, "{ip}");
        }
        assert_eq!(shop.sidecars[1].counted(), [0; 3], "nothing of it came to the sidecar");
    }
}

#[test]
fn an_application_is_reached_at_the_address_at_which_it_listens_and_at_no_other() {
    let test = "an_application_is_reached_at_the_address_at_which_it_listens_and_at_no_other";
    for family in [Family::V4, Family::V6] {
        let Some(shop) = Shop::open(test, family, "{}") else { return };
        let (any, loopback): (IpAddr, IpAddr) = match family {
            Family::V4 => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into()),
            _ => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
        };
        let everywhere = Origin::on(listen(&shop.stock, (any, 8080)), vec![http().1]);
        assert_eq!(follow(connect(&shop.shop, shop.at(8080)), &http().0).text(), OK);
        drop(everywhere.seen());
        // Without sidecars the connection would be refused; here the call is seen, and then reset.
        let _alone: TcpListener = listen(&shop.stock, (loopback, 8081));
        let seen = follow(connect(&shop.shop, shop.at(8081)), &http().0);
        assert_eq!(seen, Seen { bytes: Vec::new(), ended: Ended::Reset });
    }
}

#[test]
fn a_refusal_is_passed_on_to_whoever_speaks_and_to_whoever_waits() {
    let test = "a_refusal_is_passed_on_to_whoever_speaks_and_to_whoever_waits";
    let Some(shop) = Shop::open(test, Family::V4, "{}") else { return };
    let reset = Seen { bytes: Vec::new(), ended: Ended::Reset };
    assert_eq!(follow(connect(&shop.shop, shop.at(8080)), &http().0), reset);
    assert_eq!(follow(connect(&shop.shop, shop.at(8080)), &[Step::End]), reset);
    assert_eq!(follow(connect(&shop.shop, shop.at(8080)), &[send("\0\x01"), Step::End]), reset);
}

#[test]
fn nothing_is_lost_while_a_connection_takes_its_time() {
    let test = "nothing_is_lost_while_a_connection_takes_its_time";
    let Some(mut shop) = Shop::open(test, Family::V4, "{}") else { return };
    let origin = Origin::on(listen(&shop.stock, shop.at(8080)), vec![http().1]);
    shop.network.partition("shop", "stock").expect("pods");
    let stream = connect(&shop.shop, shop.at(8080));
    let client = std::thread::spawn(move || follow(stream, &http().0));
    // The sidecar has taken the connection and dials: the kernel's first attempt is lost, its second is not.
    while shop.sidecars[0].counted()[1] == 0 {
        std::thread::yield_now();
    }
    shop.network.heal("shop", "stock").expect("pods");
    assert_eq!(client.join().expect("it ends").text(), OK);
    assert_eq!(origin.seen()[0].text(), GET);
}

#[test]
fn excluded_ports_and_ranges_pass_by() {
    let test = "excluded_ports_and_ranges_pass_by";
    let by_port = "{exclude: {inbound_ports: [9090], outbound_ports: [9091]}}";
    let Some(shop) = Shop::open(test, Family::Dual, by_port) else { return };
    let call = |shop: &Shop, ip: IpAddr, port: u16| {
        let seen = exchange(&shop.shop, &shop.stock, SocketAddr::new(ip, port), &http());
        assert_eq!(seen.0.text(), OK, "{ip} {port}");
        shop.counted()
    };
    for (calls, ip) in (0..).zip(addresses(&shop.network, "stock")) {
        let (before, each) = (calls * 2, 1);
        assert_eq!(call(&shop, ip, 9090)[..2], [before + each, before], "past the callee's");
        assert_eq!(call(&shop, ip, 9091)[..2], [before + each, before + each], "past the caller's");
        assert_eq!(call(&shop, ip, 8080)[..2], [before + 2, before + 2], "through both");
    }
    let by_range = "{exclude: {outbound_ranges: [10.11.0.0/16, \"fd00:11::/64\"]}}";
    let Some(shop) = Shop::open(test, Family::Dual, by_range) else { return };
    for (calls, ip) in (1..).zip(addresses(&shop.network, "stock")) {
        assert_eq!(call(&shop, ip, 8080)[..2], [0, calls], "past the caller's");
    }
}

#[test]
fn a_connection_to_the_ports_of_the_sidecar_itself_is_refused_and_never_loops() {
    let test = "a_connection_to_the_ports_of_the_sidecar_itself_is_refused_and_never_loops";
    for family in FAMILIES {
        let Some(shop) = Shop::open(test, family, "{}") else { return };
        let reset = Seen { bytes: Vec::new(), ended: Ended::Reset };
        let own: Vec<SocketAddr> = addresses(&shop.network, "stock").iter().map(|ip| (*ip, 15006).into()).collect();
        let loopback: Vec<SocketAddr> = match family {
            Family::V4 => vec![(Ipv4Addr::LOCALHOST, 15001).into(), (Ipv4Addr::LOCALHOST, 15006).into()],
            _ => vec![(Ipv6Addr::LOCALHOST, 15001).into(), (Ipv6Addr::LOCALHOST, 15006).into()],
        };
        // From beside it, and past the caller's sidecar straight from another host.
        for address in own.iter().chain(&loopback) {
            assert_eq!(follow(connect(&shop.stock, *address), &[Step::End]), reset, "{address}");
        }
        assert_eq!(shop.sidecars[1].counted()[..2], [0, 0], "none of them was a link");
        for address in &own {
            assert_eq!(follow(connect(&shop.shop, *address), &[Step::End]), reset, "{address}");
        }
    }
}

#[test]
fn an_explicit_listener_beside_the_rules_takes_its_connections_itself() {
    let test = "an_explicit_listener_beside_the_rules_takes_its_connections_itself";
    let Some(network) = network(test, Family::V4, &["shop", "stock"]) else { return };
    let (shop, stock) = (inside(&network, "shop"), inside(&network, "stock"));
    let address = SocketAddr::new(addresses(&network, "stock")[0], 8080);
    let application = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
    let explicit = format!("inbound: [{{listen: \"{address}\", to: \"{application}\"}}]\n");
    let sidecar = Beside::configured(&stock, &Configured::with("stock", "{}", &explicit));
    let origin = Origin::on(listen(&stock, application), vec![http().1]);
    assert_eq!(follow(connect(&shop, address), &http().0).text(), OK);
    assert_eq!(origin.seen()[0].text(), GET);
    assert_eq!(sidecar.counted(), [1, 0, 0], "it came to the sidecar once");
}

#[test]
fn other_rules_leave_open_connections_alone_and_without_rules_everybody_talks_as_before() {
    let test = "other_rules_leave_open_connections_alone_and_without_rules_everybody_talks_as_before";
    let Some(shop) = Shop::open(test, Family::Dual, "{}") else { return };
    let origin = Origin::on(listen(&shop.stock, shop.at(8081)), vec![http().1]);
    let open = connect(&shop.shop, shop.at(8081));
    while shop.counted()[..2] != [1, 1] {
        std::thread::yield_now();
    }
    for pod in [&shop.shop, &shop.stock] {
        succeed(pod, &mut Configured::new("any", "{exclude: {inbound_ports: [9090]}}").redirect("apply", "nft"));
    }
    assert_eq!(follow(open, &http().0).text(), OK);
    assert_eq!(origin.seen()[0].text(), GET);
    for pod in [&shop.shop, &shop.stock] {
        succeed(pod, proxy().args(["redirect", "remove"]));
    }
    for ip in addresses(&shop.network, "stock") {
        let seen = exchange(&shop.shop, &shop.stock, SocketAddr::new(ip, 8080), &http());
        assert_eq!((seen.0.text().as_str(), &shop.counted()[..2]), (OK, &[1, 1][..]));
    }
}
