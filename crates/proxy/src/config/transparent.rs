//! The section `transparent:`: connections are redirected to the sidecar by the kernel, and the application knows nothing of
//! it. What is said here is read by the sidecar, which listens and announces, and by `redirect`, which makes the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use aftershock_core::yaml::{Located, Location, Spanned};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Source;

/// Where redirected connections of callers arrive, unless configured.
pub const INBOUND: u16 = 15006;
/// Where redirected connections of the application arrive, unless configured.
pub const OUTBOUND: u16 = 15001;
/// The group whose traffic is the sidecar's own, unless configured.
pub const GROUP: u32 = 4700;

/// Connections that the kernel redirects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transparent {
    /// The port, on every address, to which connections to the application are redirected.
    pub inbound: u16,
    /// The port, on loopback, to which connections of the application are redirected.
    pub outbound: u16,
    /// Further addresses at which callers reach this instance; port 0 stands for every port.
    pub addresses: BTreeSet<SocketAddr>,
    /// What is not redirected.
    pub exclude: Exclude,
    /// Whose traffic is the sidecar's own.
    pub own: Own,
}

/// Connections that pass by the sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exclude {
    /// Ports of the application.
    pub inbound_ports: BTreeSet<u16>,
    /// Ports of callees.
    pub outbound_ports: BTreeSet<u16>,
    /// Addresses of callees; none lies within another.
    pub outbound_ranges: BTreeSet<Range>,
}

/// Under which identity the sidecar runs: what it sends is not redirected. At least one is there, none is root's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// Its group.
    pub gid: Option<u32>,
    /// Its user.
    pub uid: Option<u32>,
}

impl Own {
    /// Whether a process with these effective ids is the sidecar.
    pub fn is(&self, uid: u32, gid: u32) -> bool {
        self.uid == Some(uid) || self.gid == Some(gid)
    }
}

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.gid, self.uid) {
            (Some(gid), Some(uid)) => write!(f, "group {gid} or user {uid}"),
            (Some(gid), None) => write!(f, "group {gid}"),
            (None, Some(uid)) => write!(f, "user {uid}"),
            (None, None) => f.write_str("nobody"),
        }
    }
}

/// Addresses with a common prefix, `10.0.0.0/8` (RFC 4632 §3.1, RFC 4291 §2.3). The bits behind the prefix are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    address: IpAddr,
    prefix: u8,
}

impl Range {
    /// Whether it consists of IPv6 addresses.
    pub fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }

    /// Whether every address of `other` is in it.
    pub fn contains(&self, other: &Range) -> bool {
        self.prefix <= other.prefix && self.address == masked(other.address, self.prefix)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// `address` with all bits behind the first `prefix` cleared.
fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    let prefix = u32::from(prefix);
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix)).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix)).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected a range of addresses, e.g. `10.0.0.0/8` or `fd00::/8`, found {text:?}");
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => whole,
            Some(prefix) if prefix.bytes().all(|byte| byte.is_ascii_digit()) => {
                prefix.parse().ok().filter(|prefix| *prefix <= whole).ok_or_else(wrong)?
            }
            Some(_) => return Err(wrong()),
        };
        let range = Range { address: masked(address, prefix), prefix };
        if range.address != address {
            return Err(format!("expected the first address of the range, `{range}`, found {text:?}"));
        }
        Ok(range)
    }
}

/// Connections are redirected to the sidecar by rules that `aftershock-proxy redirect apply` makes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TransparentFile {
    /// The port to which connections to the application are redirected; 15006 if left out. The sidecar listens there on
    /// every address.
    #[serde(default)]
    inbound: Option<Spanned<u16>>,
    /// The port to which connections of the application are redirected; 15001 if left out. The sidecar listens there on
    /// loopback.
    #[serde(default)]
    outbound: Option<Spanned<u16>>,
    /// Addresses at which callers reach this instance beside those of its interfaces, `ip:port`, or `ip` for every port.
    #[serde(default)]
    addresses: Vec<Spanned<String>>,
    /// What is not redirected.
    #[serde(default)]
    exclude: ExcludeFile,
    /// Whose traffic is the sidecar's own; group 4700 if left out.
    #[serde(default)]
    own: Option<Spanned<OwnFile>>,
}

/// Connections that pass by the sidecar.
#[derive(Debug, Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
struct ExcludeFile {
    /// Ports of the application.
    #[serde(default)]
    inbound_ports: Vec<Spanned<u16>>,
    /// Ports of callees.
    #[serde(default)]
    outbound_ports: Vec<Spanned<u16>>,
    /// Addresses of callees, `10.0.0.0/8`.
    #[serde(default)]
    outbound_ranges: Vec<Spanned<String>>,
}

/// The identity under which the sidecar runs, and nobody else in its network namespace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OwnFile {
    /// Its group.
    #[serde(default)]
    gid: Option<Spanned<u32>>,
    /// Its user.
    #[serde(default)]
    uid: Option<Spanned<u32>>,
}

impl Source<'_> {
    /// `taken` are the addresses of explicit listeners.
    pub(super) fn transparent(
        &self,
        file: &TransparentFile,
        taken: &BTreeMap<SocketAddr, Option<Location>>,
    ) -> Result<Transparent, Located> {
        let inbound = self.port(file.inbound.as_ref(), INBOUND)?;
        let outbound = self.port(file.outbound.as_ref(), OUTBOUND)?;
        if inbound == outbound {
            let at = file.outbound.as_ref().or(file.inbound.as_ref()).and_then(|port| port.location);
            let message = format!("expected different ports for both directions, found {inbound} twice");
            return Err(Located::at(self.file, self.text, at, message));
        }
        for port in [&file.inbound, &file.outbound].into_iter().flatten() {
            if let Some(address) = taken.keys().find(|address| address.port() == port.value) {
                return Err(self.error(port, format!("expected a port of its own, {address} is a listener's")));
            }
        }
        if let Some((address, at)) = taken.iter().find(|(address, _)| [inbound, outbound].contains(&address.port())) {
            let message = format!("expected another port than {address}, to which connections are redirected");
            return Err(Located::at(self.file, self.text, *at, message));
        }
        Ok(Transparent {
            inbound,
            outbound,
            addresses: file.addresses.iter().map(|text| self.own_address(text)).collect::<Result<_, _>>()?,
            exclude: self.exclude(&file.exclude)?,
            own: self.own(file.own.as_ref())?,
        })
    }

    fn port(&self, port: Option<&Spanned<u16>>, default: u16) -> Result<u16, Located> {
        match port {
            Some(port) if port.value == 0 => Err(self.error(port, "expected a port from 1 to 65535, found 0")),
            port => Ok(port.map_or(default, |port| port.value)),
        }
    }

    fn own_address(&self, text: &Spanned<String>) -> Result<SocketAddr, Located> {
        let every_port = |ip: IpAddr| SocketAddr::new(ip, 0);
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let read = bare.parse().map(every_port).or_else(|_| text.parse::<SocketAddr>());
        let address = read.map_err(|_| {
            let message = format!("expected `ip:port`, or `ip` for every port, found {:?}", text.value);
            self.error(text, message)
        })?;
        if address.ip().is_unspecified() || address.ip().is_loopback() {
            return Err(self.error(text, format!("expected an address that others reach, found {}", address.ip())));
        }
        Ok(address)
    }

    fn exclude(&self, file: &ExcludeFile) -> Result<Exclude, Located> {
        let ports = |ports: &[Spanned<u16>]| -> Result<BTreeSet<u16>, Located> {
            ports.iter().map(|port| self.port(Some(port), 0)).collect()
        };
        let mut ranges = BTreeSet::new();
        for text in &file.outbound_ranges {
            ranges.insert(text.parse::<Range>().map_err(|message| self.error(text, message))?);
        }
        let within = |range: &Range| ranges.iter().any(|other| other != range && other.contains(range));
        Ok(Exclude {
            inbound_ports: ports(&file.inbound_ports)?,
            outbound_ports: ports(&file.outbound_ports)?,
            outbound_ranges: ranges.iter().filter(|range| !within(range)).copied().collect(),
        })
    }

    fn own(&self, file: Option<&Spanned<OwnFile>>) -> Result<Own, Located> {
        let Some(file) = file else { return Ok(Own { gid: Some(GROUP), uid: None }) };
        let of_its_own = |id: &Option<Spanned<u32>>| match id {
            Some(id) if id.value == 0 => {
                Err(self
                    .error(id, "expected an identity of the sidecar's own, 0 is root's: all its traffic would pass by"))
            }
            id => Ok(id.as_ref().map(|id| id.value)),
        };
        let own = Own { gid: of_its_own(&file.gid)?, uid: of_its_own(&file.uid)? };
        if own == (Own { gid: None, uid: None }) {
            return Err(self.error(file, "expected `gid` or `uid`, or both"));
        }
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Config;
    use super::*;

    const FULL: &str = r#"apiVersion: aftershock.dev/v1alpha1
kind: Sidecar
service: shop
inbound: [{listen: "10.0.0.1:7000", to: "127.0.0.1:7001"}]
transparent:
  inbound: 16006
  outbound: 16001
  addresses: ["10.96.0.7:80", "[fd00:96::7]:80", 192.0.2.1, "2001:db8::1"]
  exclude:
    inbound_ports: [9090, 22, 22]
    outbound_ports: [25]
    outbound_ranges: ["10.9.1.0/24", "10.9.0.0/16", "fd00:9::/64", 192.0.2.7]
  own: {gid: 5000, uid: 5001}
"#;

    fn read(text: &str) -> Transparent {
        Config::parse("s", text).unwrap_or_else(|error| panic!("{error}")).transparent.unwrap()
    }

    #[test]
    fn every_key_is_read() {
        let read = read(FULL);
        assert_eq!((read.inbound, read.outbound), (16006, 16001));
        let addresses: Vec<String> = read.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.96.0.7:80", "192.0.2.1:0", "[2001:db8::1]:0", "[fd00:96::7]:80"]);
        assert_eq!(read.exclude.inbound_ports, [22, 9090].into());
        assert_eq!(read.exclude.outbound_ports, [25].into());
        let ranges: Vec<String> = read.exclude.outbound_ranges.iter().map(ToString::to_string).collect();
        assert_eq!(ranges, ["10.9.0.0/16", "192.0.2.7/32", "fd00:9::/64"], "none within another");
        assert_eq!(read.own, Own { gid: Some(5000), uid: Some(5001) });
    }

    #[test]
    fn an_empty_section_is_enough() {
        let text = "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: shop\ntransparent: {}\n";
        let read = read(text);
        assert_eq!((read.inbound, read.outbound), (15006, 15001));
        assert_eq!(read.own, Own { gid: Some(4700), uid: None });
        assert!(read.addresses.is_empty() && read.exclude == Exclude::default());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let cases = [
            ("inbound: 16006", "inbound: 0", 6, "from 1 to 65535"),
            ("inbound: 16006", "inbound: 70000", 6, "to 65535"),
            ("outbound: 16001", "outbound: 16006", 7, "found 16006 twice"),
            ("outbound: 16001", "outbound: 7000", 7, "10.0.0.1:7000 is a listener's"),
            ("10.0.0.1:7000", "127.0.0.1:16001", 7, "127.0.0.1:16001 is a listener's"),
            ("outbound: 16001", "outbuond: 16001", 7, "did you mean `outbound`?"),
            ("\"10.96.0.7:80\"", "shop", 8, "expected `ip:port`, or `ip`"),
            ("\"10.96.0.7:80\"", "\"127.0.0.1:80\"", 8, "that others reach"),
            ("\"10.96.0.7:80\"", "\"[::]:80\"", 8, "that others reach"),
            ("[9090, 22, 22]", "[9090, 0]", 10, "from 1 to 65535"),
            ("10.9.1.0/24", "10.9.1.0/33", 12, "expected a range"),
            ("10.9.1.0/24", "10.9.1.0/", 12, "expected a range"),
            ("10.9.1.0/24", "10.9.1.0/+8", 12, "expected a range"),
            ("10.9.1.0/24", "10.9.1.7/24", 12, "`10.9.1.0/24`"),
            ("fd00:9::/64", "fd00:9::/129", 12, "expected a range"),
            ("{gid: 5000, uid: 5001}", "{}", 13, "expected `gid` or `uid`"),
            ("gid: 5000", "gid: 0", 13, "0 is root's"),
            ("gid: 5000", "group: 5000", 13, "unknown"),
        ];
        for (good, bad, line, says) in cases {
            assert!(FULL.contains(good), "{good}");
            let error = Config::parse("s", &FULL.replacen(good, bad, 1)).expect_err(bad);
            assert_eq!(error.line, Some(line), "{bad}: {}", error.message);
            assert!(error.column.is_some() && error.message.contains(says), "{bad}: {}", error.message);
        }
    }

    proptest! {
        /// A range contains another exactly if every bit of its prefix is the other's, which is at least as long.
        #[test]
        fn ranges_contain_what_shares_their_prefix(a in any::<u32>(), b in any::<u32>(), p in 0..=32_u8, q in 0..=32_u8) {
            let bits = |address: u32, prefix: u8| (0..prefix).map(move |bit| address >> (31 - bit) & 1).collect::<Vec<_>>();
            let range = |address: u32, prefix| Range { address: masked(Ipv4Addr::from_bits(address).into(), prefix), prefix };
            let expected = p <= q && bits(a, p) == bits(b, p);
            prop_assert_eq!(range(a, p).contains(&range(b, q)), expected);
            prop_assert!(range(a, p).contains(&range(a, p)));
            prop_assert_eq!(range(a, p).to_string().parse::<Range>(), Ok(range(a, p)));
        }
    }
}
