//! A sidecar as it ships, with a controller of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context as _, bail};

use crate::controller::Controller;
use crate::process::Process;
use crate::{http1, http2};

#[derive(Debug)]
pub(crate) struct Sidecar {
    pub(crate) service: &'static str,
    pub(crate) process: Process,
    pub(crate) controller: Rc<Controller>,
    /// Where it listens for callers.
    pub(crate) address: SocketAddr,
}

impl Sidecar {
    /// Starts `program` beside `service`, on processor `cpu` if there is one. `settings` are the further lines of its
    /// configuration, which is put into `folder`, and name one inbound listener; `peers` are the services that it calls, by
    /// address.
    pub(crate) async fn start(
        service: &'static str,
        cpu: Option<usize>,
        program: &Path,
        folder: &Path,
        settings: &str,
        peers: BTreeMap<String, &str>,
    ) -> anyhow::Result<Self> {
        let controller = Controller::start(service, vec![http1::OPERATION, http2::OPERATION], peers).await?;
        let file = folder.join(format!("{service}.yaml"));
        let config = format!(
            "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: {service}\ncontrol: http://{}\n{settings}",
            controller.address()
        );
        std::fs::write(&file, config).context("cannot write a sidecar's configuration")?;
        let arguments = ["--config".as_ref(), file.as_os_str()];
        let name = format!("the sidecar of {service}");
        let process = Process::start(&name, cpu, program.as_os_str(), arguments)?;
        let addresses = controller.registered().await?;
        let [address] = addresses[..] else { bail!("{name} listens at {addresses:?}") };
        Ok(Sidecar { service, process, controller, address })
    }
}
