//! Who may speak to the controller, over real sockets (design §3.8).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aftershock_control::api::Status;
use aftershock_control::client::{Client, ClientError};
use aftershock_control::server::{Access, ControlError, Controller, Options};
use aftershock_core::wire::{FromController, FromSidecar};
use aftershock_trust::{Credentials, Endpoint, ServerTls, TokenSource, Tokens};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::AMPLE;
use crate::certificates::Authority;
use crate::http::Api;
use crate::sidecar::{Sidecar, hello, read, upgraded};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "ffffffffffffffffffffffffffffffff";

fn file_of(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn tokens(file: &Path) -> Option<Arc<Tokens>> {
    Some(Arc::new(Tokens::load(file).unwrap()))
}

fn tls(authority: &Authority, client_ca: Option<&Path>) -> Option<ServerTls> {
    let (certificate, key) = authority.sign("127.0.0.1");
    Some(ServerTls::load(&certificate, &key, client_ca).unwrap())
}

async fn with(access: Access) -> (Controller, Api) {
    crate::controller(Options { access, acknowledge_within: AMPLE, runner_lease: AMPLE, ..Options::default() }).await
}

fn client(api: Api, credentials: Credentials) -> Client {
    let scheme = if credentials.ca.is_some() { "https" } else { "http" };
    Client::of(Endpoint::new(&format!("{scheme}://{}", api.0), credentials).unwrap())
}

fn showing(token: &str) -> Credentials {
    let token = Some(TokenSource::Given { name: "TOKEN", token: token.to_owned() });
    Credentials { token, ..Credentials::default() }
}

#[tokio::test]
async fn beyond_loopback_it_asks_for_something_or_does_not_listen() {
    let file = file_of(TOKEN);
    let authority = Authority::new("ours");
    let everywhere = async || TcpListener::bind("0.0.0.0:0").await.unwrap();
    let start =
        async |access: Access| Controller::start(everywhere().await, Options { access, ..Options::default() }).await;
    let open = start(Access::default()).await.unwrap_err();
    assert!(matches!(open, ControlError::Open(_)), "{open}");
    for option in ["--token-file", "--tls-cert", "--tls-key", "--client-ca", "loopback"] {
        assert!(open.to_string().contains(option), "{open}");
    }
    let encrypted = start(Access { tls: tls(&authority, None), ..Access::default() }).await.unwrap_err();
    assert!(matches!(encrypted, ControlError::Open(_)), "encryption alone keeps nobody out: {encrypted}");
    let plain = start(Access { tokens: tokens(file.path()), ..Access::default() }).await.unwrap_err();
    assert!(matches!(plain, ControlError::Plaintext(_)), "{plain}");
    assert!(plain.to_string().contains("--insecure-plaintext"), "{plain}");
    for access in [
        Access { tokens: tokens(file.path()), insecure_plaintext: true, ..Access::default() },
        Access { tokens: tokens(file.path()), tls: tls(&authority, None), ..Access::default() },
        Access { tls: tls(&authority, Some(&authority.ca)), ..Access::default() },
    ] {
        start(access).await.unwrap().shutdown().await;
    }
}

#[tokio::test]
async fn without_a_valid_token_every_path_is_refused_and_counted() {
    let file = file_of(&format!("{TOKEN}\n"));
    let (_controller, api) = with(Access { tokens: tokens(file.path()), ..Access::default() }).await;
    let paths = [
        ("GET", "/v1/status"),
        ("POST", "/v1/rounds"),
        ("GET", "/v1/rounds/1"),
        ("POST", "/v1/disarm"),
        ("POST", "/v1/traces"),
        ("POST", "/v1/recordings"),
        ("GET", "/v1/sidecar"),
        ("GET", "/nowhere"),
    ];
    let wrong = format!("authorization: Bearer {OTHER}\r\n");
    let upgrade = "connection: upgrade\r\nupgrade: aftershock/1\r\n";
    let twice = format!("authorization: Bearer {TOKEN}\r\nauthorization: Bearer {TOKEN}\r\n");
    let mut refused = 0;
    for (method, path) in paths {
        for headers in ["", &wrong, upgrade, &twice, &format!("origin: http://a\r\n{wrong}")] {
            let answer = api.send(method, path, headers, b"").await;
            assert!(answer.head.to_ascii_lowercase().contains("www-authenticate: bearer"), "{}", answer.text());
            assert!(!answer.text().contains(OTHER) && !answer.text().contains(TOKEN));
            assert!(answer.error(401).contains("--token-file"));
            refused += 1;
        }
    }
    let status = client(api, showing(TOKEN)).status().await.unwrap();
    assert_eq!((status.turned_away, status.sidecars.len()), (refused, 0));
    let error = client(api, showing(OTHER)).status().await.unwrap_err();
    assert!(matches!(&error, ClientError::Refused { status: 401, .. }), "{error}");
    assert!(!format!("{error:?} {error}").contains(OTHER));
}

#[tokio::test]
async fn a_sidecar_with_the_token_registers_and_each_line_of_the_file_is_a_token() {
    let file = file_of(&format!("# old\n{OTHER}\n# new\n{TOKEN}\n"));
    let (_controller, api) = with(Access { tokens: tokens(file.path()), ..Access::default() }).await;
    for (observer, token) in [(1, TOKEN), (2, OTHER)] {
        let stream = TcpStream::connect(api.0).await.unwrap();
        let (reader, mut writer) = stream.into_split();
        let head = format!(
            "GET /v1/sidecar HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: aftershock/1\r\nauthorization: \
             Bearer {token}\r\n\r\n"
        );
        writer.write_all(head.as_bytes()).await.unwrap();
        let mut reader = BufReader::new(reader);
        let mut line = String::new();
        reader.read_line(&mut line).await.unwrap();
        assert!(line.starts_with("HTTP/1.1 101 "), "{line}");
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).await.unwrap();
        }
        let mut hello = serde_json::to_vec(&FromSidecar::Hello(hello("cart", observer))).unwrap();
        hello.push(b'\n');
        writer.write_all(&hello).await.unwrap();
        assert!(matches!(read(&mut reader).await, Some(FromController::Welcome { .. })));
    }
}

#[tokio::test]
async fn over_tls_a_client_believes_only_its_authority_and_an_unencrypted_one_gets_nothing() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let file = file_of(TOKEN);
    let access = Access { tokens: tokens(file.path()), tls: tls(&ours, None), ..Access::default() };
    let (_controller, api) = with(access).await;
    let by = |ca: &Path| Credentials { ca: Some(ca.to_owned()), ..showing(TOKEN) };
    assert!(client(api, by(&ours.ca)).status().await.is_ok());
    let error = client(api, by(&others.ca)).status().await.unwrap_err();
    assert!(matches!(&error, ClientError::Unreachable { .. }) && error.to_string().contains("certificate"), "{error}");
    let without = Credentials { ca: Some(ours.ca.clone()), ..Credentials::default() };
    assert!(matches!(client(api, without).status().await, Err(ClientError::Refused { status: 401, .. })));
    assert!(client(api, showing(TOKEN)).status().await.is_err(), "plain HTTP at a TLS port");
    // A certificate for another host.
    let (certificate, key) = ours.sign("controller.test");
    let tls = Some(ServerTls::load(&certificate, &key, None).unwrap());
    let (_controller, api) = with(Access { tokens: tokens(file.path()), tls, ..Access::default() }).await;
    assert!(matches!(client(api, by(&ours.ca)).status().await, Err(ClientError::Unreachable { .. })));
    // Who is told where that host is looks nothing up, and still believes only its certificate.
    let found = |host: &str| {
        let endpoint = Endpoint::new(&format!("https://{host}:1"), by(&ours.ca)).unwrap();
        Client::of(endpoint.at(api.0))
    };
    assert!(found("controller.test").status().await.is_ok());
    let error = found("other.test").status().await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn where_certificates_are_asked_for_a_client_without_one_of_ours_is_turned_away() {
    let (ours, clients, others) = (Authority::new("ours"), Authority::new("clients"), Authority::new("others"));
    let (_controller, api) = with(Access { tls: tls(&ours, Some(&clients.ca)), ..Access::default() }).await;
    let by = |identity: Option<(std::path::PathBuf, std::path::PathBuf)>| {
        let (certificate, key) = identity.unzip();
        client(api, Credentials { ca: Some(ours.ca.clone()), certificate, key, ..Credentials::default() })
    };
    for identity in [None, Some(others.sign("client"))] {
        let error = by(identity).status().await.unwrap_err();
        assert!(matches!(&error, ClientError::Unreachable { .. }), "{error}");
    }
    let status = by(Some(clients.sign("client"))).status().await.unwrap();
    assert_eq!(status.turned_away, 2);
    // Beside a token both are asked for.
    let file = file_of(TOKEN);
    let access = Access { tokens: tokens(file.path()), tls: tls(&ours, Some(&clients.ca)), ..Access::default() };
    let (_controller, api) = with(access).await;
    let (certificate, key) = clients.sign("client");
    let mut credentials = Credentials {
        ca: Some(ours.ca.clone()),
        certificate: Some(certificate),
        key: Some(key),
        ..Credentials::default()
    };
    let without = client(api, credentials.clone()).status().await;
    assert!(matches!(without, Err(ClientError::Refused { status: 401, .. })));
    credentials.token = showing(TOKEN).token;
    assert!(client(api, credentials).status().await.is_ok());
}

#[tokio::test]
async fn a_client_that_is_slow_with_its_handshake_keeps_nobody_waiting() {
    let ours = Authority::new("ours");
    let (_controller, api) = with(Access { tls: tls(&ours, None), ..Access::default() }).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(api.0).await.unwrap());
    }
    let credentials = Credentials { ca: Some(ours.ca.clone()), ..Credentials::default() };
    assert!(client(api, credentials).status().await.is_ok());
}

#[tokio::test]
async fn a_sidecar_of_another_version_is_shown_until_it_comes_with_the_right_one() {
    let (_controller, api) = with(Access::default()).await;
    let status = async || -> Status { api.get("/v1/status").await.ok() };
    let (mut reader, mut writer) = upgraded(api).await;
    let mut older = serde_json::to_value(FromSidecar::Hello(hello("cart", 1))).unwrap();
    let theirs = aftershock_core::wire::PROTOCOL - 1;
    older["protocol"] = theirs.into();
    writer.write_all(format!("{older}\n").as_bytes()).await.unwrap();
    assert!(matches!(read(&mut reader).await, Some(FromController::Refused { .. })));
    let refused = status().await.refused;
    let (service, reason) = refused.iter().next().unwrap();
    let expected = format!("speaks protocol {theirs}, this controller");
    assert!(service.as_str() == "cart" && reason.contains(&expected), "{reason}");
    let _cart = Sidecar::connect(api, "cart", 1).await;
    assert!(status().await.refused.is_empty());
}

#[tokio::test]
async fn hop_keys_are_exchanged_when_every_sidecar_has_confirmed_and_newcomers_get_the_ring_of_the_moment() {
    let options = Options {
        rotate_keys: Duration::from_millis(20),
        drain_keys: Duration::from_millis(20),
        acknowledge_within: AMPLE,
        ..Options::default()
    };
    let (_controller, api) = crate::controller(options).await;
    let register = async |service: &str, observer: u64| {
        let (mut reader, mut writer) = upgraded(api).await;
        let mut line = serde_json::to_vec(&FromSidecar::Hello(hello(service, observer))).unwrap();
        line.push(b'\n');
        writer.write_all(&line).await.unwrap();
        match read(&mut reader).await {
            Some(FromController::Welcome { keys, .. }) => (reader, writer, ids(&keys)),
            other => panic!("expected a welcome, found {other:?}"),
        }
    };
    fn ids(keys: &aftershock_core::hop::Keyring) -> Vec<u8> {
        keys.0.iter().map(|key| key.id).collect()
    }
    async fn next_keys(reader: &mut BufReader<tokio::net::tcp::OwnedReadHalf>) -> Vec<u8> {
        loop {
            match read(reader).await.unwrap() {
                FromController::Keys { keys } => return ids(&keys),
                FromController::Registry(_) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }
    async fn keyed(writer: &mut tokio::net::tcp::OwnedWriteHalf, keys: &[u8]) {
        let line = serde_json::to_string(&FromSidecar::Keyed { keys: keys.to_vec() }).unwrap();
        writer.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }
    let (mut cart, mut to_cart, first) = register("cart", 1).await;
    let both = match first[..] {
        // It came between two rotations, or into one.
        [old] => {
            let both = next_keys(&mut cart).await;
            assert_eq!(both, [old, old.wrapping_add(1)], "announced");
            both
        }
        _ => next_keys(&mut cart).await,
    };
    let (mut shop, mut to_shop, welcomed) = register("shop", 2).await;
    assert_eq!((&welcomed, &next_keys(&mut shop).await), (&both, &both), "welcomed with it, and asked to confirm");
    keyed(&mut to_cart, &both).await;
    keyed(&mut to_shop, &both).await;
    let switched: Vec<u8> = both.iter().rev().copied().collect();
    for (reader, writer) in [(&mut cart, &mut to_cart), (&mut shop, &mut to_shop)] {
        assert_eq!(next_keys(reader).await, switched, "after both have confirmed");
        keyed(writer, &switched).await;
    }
    for reader in [&mut cart, &mut shop] {
        assert_eq!(next_keys(reader).await, switched[..1], "the old one is taken no longer");
    }
}
