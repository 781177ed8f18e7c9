//! A topology running: one process per service, one per sidecar, on addresses of their own.
//!
//! Every child lives as long as its standard input, which the parent holds open, and in a process group of its own, so
//! that Ctrl-C reaches the parent alone and the parent stops the children in order. Dropping a [`RunningLab`] kills and
//! reaps whatever still runs.

mod child;
mod layout;
mod pods;
mod sidecar;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use self::child::Child;
use self::layout::{Layout, Sites};
use self::pods::{Pods, SIDECARS};
use crate::admin;
use crate::events::{Event, Ledger};
use crate::net::{Family, NetError, Pod};
use crate::service::{SPEC_SCHEMA, ServiceSpec};
use crate::topology::{Propagation, Topology};
use crate::truth::{Contradiction, Fate, Log, Question};

pub use self::pods::{CLIENT, CONTROLLER};
pub use crate::admin::AdminError;

/// A program with the arguments that come before ours.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The executable.
    pub program: PathBuf,
    /// Arguments that select the role, such as a hidden subcommand.
    pub args: Vec<OsString>,
}

/// How a topology is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// What runs a service; it gets a [`ServiceSpec`] as the first line of standard input.
    pub service: Launcher,
    /// What runs a sidecar; it gets `--config FILE --exit-with-stdin`. `None` wires the services directly.
    pub sidecar: Option<Launcher>,
    /// Where sidecars register.
    pub control: Option<Control>,
    /// Where callers find a service instead of at its own address, by service: a hop of the caller's own. Only without
    /// sidecars, which dial each other.
    pub detours: BTreeMap<String, SocketAddr>,
    /// Replaces the propagation of every service that calls.
    pub propagation: Option<Propagation>,
    /// Instances of each service, each with a sidecar of its own.
    pub replicas: NonZeroU16,
    /// Services keep what they must not forget when they are killed in files of `directory`, and have it again when
    /// they are restarted.
    pub durable: bool,
    /// Each instance on a host of its own, on a network of pods with these addresses; all of them on loopback if left out.
    /// Needs root. Without sidecars nothing is redirected; detours are not reached.
    pub pods: Option<Family>,
    /// The /24 of loopback to use, e.g. 127.77.1; a random free one if left out. Replicas are in the ones after it.
    pub subnet: Option<[u8; 3]>,
    /// Where outputs of the processes and sidecar configurations are kept; a temporary directory if left out.
    pub directory: Option<PathBuf>,
    /// How long all processes together may take to become ready.
    pub ready_within: Duration,
}

/// Where sidecars register, and what they show there: `control` of `kind: Sidecar`.
#[derive(Clone, Debug, Default)]
pub struct Control {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub url: String,
    /// Where that is, if `url` has a name: sidecars resolve none.
    pub address: Option<SocketAddr>,
    /// The file with their token.
    pub token_file: Option<PathBuf>,
    /// The authorities that sign the controller's certificate.
    pub ca: Option<PathBuf>,
    /// Their certificate.
    pub cert: Option<PathBuf>,
    /// The key of that.
    pub key: Option<PathBuf>,
    /// The token may travel unencrypted.
    pub insecure_plaintext: bool,
}

impl From<String> for Control {
    fn from(url: String) -> Self {
        Control { url, ..Control::default() }
    }
}

impl Options {
    /// Services without sidecars, run by `service`.
    pub fn new(service: Launcher) -> Self {
        Self {
            service,
            sidecar: None,
            control: None,
            detours: BTreeMap::new(),
            propagation: None,
            replicas: NonZeroU16::MIN,
            durable: false,
            pods: None,
            subnet: None,
            directory: None,
            ready_within: Duration::from_secs(10),
        }
    }
}

/// What a process of the lab is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A mock service.
    Service,
    /// The sidecar of one.
    Sidecar,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Service => "service",
            Self::Sidecar => "sidecar",
        })
    }
}

/// Why a topology did not start.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// No subnet of loopback had all ports free.
    #[error("found no free addresses on loopback for {services} services, last refused: {address}")]
    Addresses {
        /// Services of the topology.
        services: usize,
        /// The last address that could not be bound.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// An address of the chosen subnet is taken.
    #[error("cannot listen on {address}, choose another subnet")]
    Taken {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// More services than addresses in a subnet.
    #[error("a topology has at most {most} services, this one has {found}")]
    TooManyServices {
        /// Services that fit.
        most: usize,
        /// Services found.
        found: usize,
    },
    /// More replicas than subnets.
    #[error("there can be at most {most} replicas here, not {asked}: each has a /24 of its own, one after the other")]
    TooManyReplicas {
        /// Replicas that fit.
        most: u16,
        /// Replicas asked for.
        asked: u16,
    },
    /// There is no network of pods.
    #[error(transparent)]
    Network(#[from] NetError),
    /// A service has the name of a host that is not a service.
    #[error("a topology on a network of pods cannot have a service `{0}`: a host of that name is there already")]
    Reserved(&'static str),
    /// Pods cannot reach the controller.
    #[error("pods cannot reach the controller at {url}: {why}")]
    Controller {
        /// Where it is.
        url: String,
        /// Why not.
        why: String,
    },
    /// Traffic of a service is not redirected.
    #[error("cannot redirect the traffic of {service}: {said}")]
    Redirect {
        /// Which service.
        service: String,
        /// What the program said.
        said: String,
    },
    /// No randomness.
    #[error("no random numbers")]
    Random(#[source] std::io::Error),
    /// The working directory or a file in it.
    #[error("cannot write {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A program could not be started.
    #[error("cannot start the {role} of {service}, {program}")]
    Start {
        /// What it would have been.
        role: Role,
        /// For which service.
        service: String,
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A process ended before it was ready.
    #[error("the {role} of {service} ended ({status}) before it was ready; its last output:\n{output}")]
    Ended {
        /// What it was.
        role: Role,
        /// For which service.
        service: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of its output.
        output: String,
    },
    /// A process was not ready in time.
    #[error("the {role} of {service} was not ready within {seconds} s; its last output:\n{output}")]
    NotReady {
        /// What it is.
        role: Role,
        /// For which service.
        service: String,
        /// How long it had.
        seconds: f64,
        /// The end of its output.
        output: String,
    },
}

/// Why hosts were not parted, killed or started.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Everything is on loopback.
    #[error("everything of this lab is on one host: partitions and deaths of hosts need `lab up --network netns`")]
    None,
    /// It runs nothing of the lab.
    #[error("the host `{0}` stands for what is outside the lab: it can be parted from others, but not be killed")]
    Immortal(String),
    /// The network said no.
    #[error(transparent)]
    Network(#[from] NetError),
    /// What was on it does not start again.
    #[error(transparent)]
    Up(#[from] UpError),
}

/// A process that was running and is not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What it was.
    pub role: Role,
    /// For which service.
    pub service: String,
    /// How it ended.
    pub status: std::process::ExitStatus,
    /// The end of its output.
    pub output: String,
}

/// A topology whose processes run.
#[derive(Debug)]
pub struct RunningLab {
    topology: Topology,
    /// As seen from outside.
    sites: Sites,
    children: Vec<Child>,
    /// After the children, whose network it is.
    pods: Option<Pods>,
    directory: PathBuf,
    options: Options,
    /// Removed with the lab, unless the caller chose the directory.
    _temporary: Option<tempfile::TempDir>,
}

/// Starts every service of `topology`, and its sidecar if `options` name one, and waits until all are ready.
///
/// Ready is: the service answers on its admin address as the process that was started; the sidecar accepts connections
/// on each listener. Whether sidecars have registered is for the caller to ask the controller.
pub async fn up(topology: Topology, options: &Options) -> Result<RunningLab, UpError> {
    let layout = match options.pods {
        // On loopback there are only the ways in: applications and sidecars listen on their own hosts.
        Some(_) => Layout::find(&topology, &Options { sidecar: None, ..options.clone() })?,
        None => Layout::find(&topology, options)?,
    };
    let (directory, temporary) = match &options.directory {
        Some(directory) => {
            std::fs::create_dir_all(directory).map_err(|source| UpError::File { path: directory.clone(), source })?;
            (directory.clone(), None)
        }
        None => {
            let temporary = tempfile::Builder::new().prefix("aftershock-lab-").tempdir();
            let temporary = temporary.map_err(|source| UpError::File { path: std::env::temp_dir(), source })?;
            (temporary.path().to_owned(), Some(temporary))
        }
    };
    let pods = options.pods.map(|family| Pods::lay(family, &topology, &layout.sites, options)).transpose()?;
    let mut lab = RunningLab {
        topology,
        sites: layout.sites,
        children: Vec::new(),
        pods,
        directory,
        options: options.clone(),
        _temporary: temporary,
    };
    let services: Vec<String> = lab.topology.services.iter().map(|service| service.name.clone()).collect();
    let instances =
        || services.iter().flat_map(|service| (0..options.replicas.get().into()).map(move |n| (service, n)));
    for (service, replica) in instances() {
        lab.forget(service, replica)?;
        lab.start_service(service, replica)?;
    }
    if options.sidecar.is_some() {
        for (service, replica) in instances() {
            lab.start_sidecar(service, replica)?;
        }
    }
    lab.ready(options.ready_within).await?;
    Ok(lab)
}

impl RunningLab {
    /// Removes what an earlier lab in the same directory left of an instance.
    fn forget(&self, service: &str, replica: usize) -> Result<(), UpError> {
        for suffix in ["log", "sidecar.log", "journal"] {
            let path = self.directory.join(format!("{}.{suffix}", instance(service, replica)));
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(UpError::File { path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn start_service(&mut self, service: &str, replica: usize) -> Result<(), UpError> {
        let options = &self.options;
        let pods = self.pods.as_ref();
        let sites = &pods.map_or(&self.sites, |pods| &pods.sites)[service];
        let site = &sites[replica];
        let others = sites.iter().filter(|other| other.admin != site.admin);
        let spec = ServiceSpec {
            schema: SPEC_SCHEMA.to_owned(),
            topology_file: self.topology.source.file.clone(),
            topology: self.topology.source.text.clone(),
            service: service.to_owned(),
            listen: pods.map_or(site.application, |pods| pods.listen(site)),
            admin: site.admin,
            replicas: others.map(|other| other.admin).collect(),
            isolated: pods.is_some(),
            callees: site.callees.clone(),
            journal: options.durable.then(|| self.directory.join(format!("{}.journal", instance(service, replica)))),
            propagation: options.propagation,
        };
        let mut line = serde_json::to_string(&spec).expect("its map keys are strings");
        line.push('\n');
        let log = self.directory.join(format!("{}.log", instance(service, replica)));
        let place = pods.map(|pods| (pods.namespace(service, replica), None));
        let child = Child::start(Role::Service, service, replica, &options.service, &[], &log, Some(&line), place)?;
        self.children.push(child);
        Ok(())
    }

    fn start_sidecar(&mut self, service: &str, replica: usize) -> Result<(), UpError> {
        let options = &self.options;
        let Some(launcher) = &options.sidecar else { return Ok(()) };
        let pods = self.pods.as_ref();
        let sites = pods.map_or(&self.sites, |pods| &pods.sites);
        let config = sidecar::config(&self.topology, service, &sites[service][replica], sites, options, pods);
        let stem = instance(service, replica);
        let path = self.directory.join(format!("{stem}.sidecar.yaml"));
        std::fs::write(&path, config).map_err(|source| UpError::File { path: path.clone(), source })?;
        let log = self.directory.join(format!("{stem}.sidecar.log"));
        if let Some(pods) = pods {
            pods.redirect(service, replica, launcher, &path)?;
        }
        let args = ["--config".into(), path.into_os_string(), "--exit-with-stdin".into()];
        let place = pods.map(|pods| (pods.namespace(service, replica), Some(SIDECARS)));
        let child = Child::start(Role::Sidecar, service, replica, launcher, &args, &log, None, place)?;
        self.children.push(child);
        Ok(())
    }

    async fn ready(&mut self, within: Duration) -> Result<(), UpError> {
        let deadline = Instant::now() + within;
        let dead = self.dead_hosts();
        let is_dead = |child: &Child| dead.contains(&instance(&child.service, child.replica));
        let mut waiting: Vec<usize> = (0..self.children.len()).filter(|&n| !is_dead(&self.children[n])).collect();
        loop {
            for child in self.children.iter_mut().filter(|child| !is_dead(child)) {
                if let Some(status) = child.ended() {
                    let (role, service, output) = (child.role, child.service.clone(), child.last_output());
                    return Err(UpError::Ended { role, service, status, output });
                }
            }
            while let Some(&next) = waiting.first() {
                let child = &self.children[next];
                let site = &self.sites[&child.service][child.replica];
                let ready = match (child.role, &self.pods) {
                    (Role::Service, _) => admin::answers_as(site.admin, child.pid()).await,
                    (Role::Sidecar, Some(pods)) => pods.takes_redirected(&child.service, child.replica),
                    (Role::Sidecar, None) => accepts_on_all(&site.sidecar_listeners()).await,
                };
                if !ready {
                    break;
                }
                waiting.remove(0);
            }
            let Some(&next) = waiting.first() else { return Ok(()) };
            if Instant::now() >= deadline {
                let child = &self.children[next];
                let (role, service, output) = (child.role, child.service.clone(), child.last_output());
                return Err(UpError::NotReady { role, service, seconds: within.as_secs_f64(), output });
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The topology that runs.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Instances of each service.
    pub fn replicas(&self) -> u16 {
        let instances = self.sites.values().next().map_or(1, Vec::len);
        u16::try_from(instances).expect("there are at most as many as subnets")
    }

    /// Where logs and sidecar configurations are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where callers reach the first instance of a service: its sidecar, or the service itself without sidecars.
    pub fn address(&self, service: &str) -> Option<SocketAddr> {
        self.addresses(service).first().copied()
    }

    /// Where callers reach each instance of a service, in the order of the replicas.
    pub fn addresses(&self, service: &str) -> Vec<SocketAddr> {
        self.sites.get(service).into_iter().flatten().map(|site| site.inbound).collect()
    }

    /// Where a client sends the request of this name, to the first instance.
    pub fn entry(&self, request: &str) -> Option<SocketAddr> {
        self.entries(request).first().copied()
    }

    /// Where a client can send the request of this name.
    pub fn entries(&self, request: &str) -> Vec<SocketAddr> {
        let api = self.topology.request(request).and_then(|request| self.topology.api(&request.api));
        api.map(|api| self.addresses(&api.service)).unwrap_or_default()
    }

    /// Where a service's ledgers are read; events and health of its first instance, too.
    pub fn admin(&self, service: &str) -> Option<SocketAddr> {
        self.sites.get(service).map(|sites| sites[0].admin)
    }

    /// Where events and health of each instance of a service are read, in the order of the replicas.
    pub fn admins(&self, service: &str) -> Vec<SocketAddr> {
        self.sites.get(service).into_iter().flatten().map(|site| site.admin).collect()
    }

    /// Where a ledger of this name is read, with the path that `?key=` is added to.
    pub fn ledger_url(&self, ledger: &str) -> Option<String> {
        let admin = self.admin(self.topology.ledgers.get(ledger)?)?;
        Some(format!("http://{admin}/ledgers/{ledger}"))
    }

    /// The processes that were started: role, service, process id.
    pub fn processes(&self) -> impl Iterator<Item = (Role, &str, u32)> {
        self.children.iter().map(|child| (child.role, child.service.as_str(), child.pid()))
    }

    /// Kills a process of the lab without a word (SIGKILL) and reaps it; false if none with this id runs.
    pub fn kill(&mut self, pid: u32) -> bool {
        let Some(child) = self.children.iter_mut().find(|child| child.pid() == pid) else { return false };
        let running = child.ended().is_none();
        child.kill();
        running
    }

    /// Starts every process that has ended again, in its place, and waits until all are ready. A service begins with what
    /// its journal holds, if there is one ([`Options::durable`]), and with nothing otherwise.
    ///
    /// # Errors
    /// As [`up`](up()).
    pub async fn revive(&mut self) -> Result<(), UpError> {
        let mut ended = Vec::new();
        for mut child in std::mem::take(&mut self.children) {
            match child.ended() {
                Some(_) => ended.push(child),
                None => self.children.push(child),
            }
        }
        for child in ended {
            self.start_again(&child)?;
        }
        self.ready(self.options.ready_within).await
    }

    /// Whether hosts can be parted and can die.
    pub fn has_hosts(&self) -> bool {
        self.pods.is_some()
    }

    /// The hosts that there are: instances by their names, [`CLIENT`] and [`CONTROLLER`].
    pub fn hosts(&self) -> impl Iterator<Item = (&str, &Pod)> {
        self.pods.iter().flat_map(|pods| pods.network.pods())
    }

    /// The hosts that are dead.
    pub fn dead_hosts(&self) -> Vec<String> {
        self.hosts().filter(|(_, pod)| !pod.is_alive()).map(|(name, _)| name.to_owned()).collect()
    }

    /// The partitions that there are.
    pub fn partitions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pods.iter().flat_map(|pods| pods.network.partitions())
    }

    /// Loses everything that two hosts send each other. What lies outside the lab is on [`CLIENT`], the controller on
    /// [`CONTROLLER`].
    ///
    /// # Errors
    /// There are no hosts, or none of this name.
    pub fn partition(&mut self, a: &str, b: &str) -> Result<(), HostError> {
        Ok(self.pods_mut()?.network.partition(a, b)?)
    }

    /// Ends that.
    ///
    /// # Errors
    /// As [`RunningLab::partition`].
    pub fn heal(&mut self, a: &str, b: &str) -> Result<(), HostError> {
        Ok(self.pods_mut()?.network.heal(a, b)?)
    }

    /// Kills the host of an instance, with service and sidecar: nobody hears of it.
    ///
    /// # Errors
    /// There are no hosts, none of this name, or it is dead.
    pub fn kill_host(&mut self, host: &str) -> Result<(), HostError> {
        let pods = self.pods_mut()?;
        if [CLIENT, CONTROLLER].contains(&host) {
            return Err(HostError::Immortal(host.to_owned()));
        }
        pods.network.kill_host(host)?;
        self.children.iter_mut().filter(|child| instance(&child.service, child.replica) == host).for_each(Child::kill);
        Ok(())
    }

    /// Starts a dead host again, its service and its sidecar, and waits until they are ready. The service begins with what
    /// its journal holds, if there is one ([`Options::durable`]).
    ///
    /// # Errors
    /// There are no hosts, none of this name, or it is alive; or a process does not start.
    pub async fn revive_host(&mut self, host: &str) -> Result<(), HostError> {
        self.pods_mut()?.network.revive(host)?;
        let (ended, others) = std::mem::take(&mut self.children)
            .into_iter()
            .partition::<Vec<_>, _>(|child| instance(&child.service, child.replica) == host);
        self.children = others;
        for child in ended {
            self.start_again(&child)?;
        }
        Ok(self.ready(self.options.ready_within).await?)
    }

    /// Heals every partition and starts every dead host again.
    ///
    /// # Errors
    /// As [`RunningLab::revive_host`].
    pub async fn restore_hosts(&mut self) -> Result<(), HostError> {
        let own = |(a, b): (&str, &str)| (a.to_owned(), b.to_owned());
        for (a, b) in self.partitions().map(own).collect::<Vec<_>>() {
            self.heal(&a, &b)?;
        }
        for host in self.dead_hosts() {
            self.revive_host(&host).await?;
        }
        Ok(())
    }

    fn pods_mut(&mut self) -> Result<&mut Pods, HostError> {
        self.pods.as_mut().ok_or(HostError::None)
    }

    fn start_again(&mut self, child: &Child) -> Result<(), UpError> {
        match child.role {
            Role::Service => self.start_service(&child.service, child.replica),
            Role::Sidecar => self.start_sidecar(&child.service, child.replica),
        }
    }

    /// The processes that have ended by themselves; those of dead hosts have not.
    pub fn ended(&mut self) -> Vec<Ended> {
        let dead = self.dead_hosts();
        let ended = |child: &mut Child| {
            if dead.contains(&instance(&child.service, child.replica)) {
                return None;
            }
            let status = child.ended()?;
            Some(Ended { role: child.role, service: child.service.clone(), status, output: child.last_output() })
        };
        self.children.iter_mut().filter_map(ended).collect()
    }

    /// What the ledger of this name holds for a business key.
    pub async fn ledger(&self, ledger: &str, key: &str) -> Result<Ledger, AdminError> {
        let service = self.topology.ledgers.get(ledger).ok_or_else(|| {
            AdminError::Unknown(crate::names::unknown(
                "ledger",
                ledger,
                self.topology.ledgers.keys().map(String::as_str),
            ))
        })?;
        admin::get(self.sites[service][0].admin, &format!("/ledgers/{ledger}"), key).await
    }

    /// What all instances wrote down about a business key, merged by the clock they share.
    pub async fn events(&self, key: &str) -> Result<Log, AdminError> {
        let logs = self.sites.values().flatten().map(|site| admin::get::<Vec<Event>>(site.admin, "/events", key));
        let logs = futures_util::future::try_join_all(logs).await?;
        Ok(Log::new(logs.into_iter().flatten()))
    }

    /// The merged logs about a business key, once no call of it is open; as they are when `within` is over.
    ///
    /// What a round causes may outlast the client's answer: a losing branch, a service that is just writing its log.
    pub async fn settled(&self, key: &str, within: Duration) -> Result<Log, AdminError> {
        let deadline = Instant::now() + within;
        loop {
            let log = self.events(key).await?;
            if log.is_complete() || Instant::now() >= deadline {
                return Ok(log);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Asks the services' own logs and ledgers what happened under a business key; the answers that differ from what was
    /// expected. A call that is still open after `within` is one of them.
    pub async fn judge(
        &self,
        key: &str,
        questions: &[Question],
        within: Duration,
    ) -> Result<Vec<Contradiction>, AdminError> {
        let log = self.settled(key, within).await?;
        let mut contradictions = Vec::new();
        if let Some(open) = log.calls().iter().find(|call| call.fate() == Fate::Open) {
            let claim = format!("every call of {key} has ended");
            contradictions.push(Contradiction { claim, found: format!("{open} is open") });
        }
        for question in questions {
            let ledger = match question.ledger() {
                Some(ledger) => Some(self.ledger(ledger, key).await?),
                None => None,
            };
            contradictions.extend(question.ask(&log, ledger.as_ref()).err());
        }
        Ok(contradictions)
    }

    /// Asks every process to end (SIGTERM), sidecars first, kills what has not ended after `grace`, and says how each
    /// ended. All are reaped.
    pub async fn stop(mut self, grace: Duration) -> Vec<Ended> {
        let deadline = Instant::now() + grace;
        for role in [Role::Sidecar, Role::Service] {
            self.children.iter_mut().filter(|child| child.role == role).for_each(Child::terminate);
        }
        while self.children.iter_mut().any(|child| child.ended().is_none()) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.children.iter_mut().for_each(Child::kill);
        self.ended()
    }
}

/// The name of an instance, of its files and of its host.
fn instance(service: &str, replica: usize) -> String {
    match replica {
        0 => service.to_owned(),
        _ => format!("{service}.{}", replica + 1),
    }
}

async fn accepts_on_all(listeners: &[SocketAddr]) -> bool {
    for address in listeners {
        if tokio::net::TcpStream::connect(address).await.is_err() {
            return false;
        }
    }
    true
}
