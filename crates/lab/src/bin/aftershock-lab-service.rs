//! One mock service; what to run is the first line of standard input. For the lab's own tests: the `aftershock` binary
//! runs its services by re-executing itself.

fn main() -> anyhow::Result<()> {
    aftershock_lab::service::run_from_stdin()
}
