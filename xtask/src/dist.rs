//! `cargo xtask dist`: the sidecar as it ships, one file that needs nothing of the system it runs on.
//!
//! It is checked to be that: the file asks for no loader and no library, says its version, and serves a request from a root
//! folder in which there is nothing else.

mod elf;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::run;

/// How long the sidecar may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the application behind it says.
const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole";

pub(crate) fn run() -> anyhow::Result<()> {
    let path = build()?;
    let bytes = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    elf::check_static(&bytes).with_context(|| format!("{} is not static", path.display()))?;
    let version = Command::new(&path).arg("--version").output()?;
    ensure!(version.status.success(), "{} --version ended with {}", path.display(), version.status);
    println!("{}", path.display());
    println!("{}", String::from_utf8_lossy(&version.stdout).trim());
    println!("{:.2} MiB ({} bytes), static", bytes.len() as f64 / f64::from(1 << 20), bytes.len());
    match serve_from_empty_root(&path)? {
        true => println!("serves from an empty root"),
        false => println!("SKIPPED serving from an empty root: needs root, or `unshare --user`"),
    }
    Ok(())
}

/// Builds it; where it is.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    let host = host()?;
    ensure!(
        host.ends_with("-linux-gnu") || host.ends_with("-linux-musl"),
        "a static sidecar is built on Linux, with the target of glibc or musl; this is {host}"
    );
    eprintln!("building the sidecar");
    let mut command = run::cargo(&["build", "--quiet", "--locked", "--profile", "dist", "-p", "aftershock-proxy"]);
    // With a target, even the host's own, the flags are not for build scripts and macros, which cannot be static.
    command.args(["--bin", "aftershock-proxy", "--target", &host]);
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" -C target-feature=+crt-static");
    // By itself the crate looks for the system call's wrapper at run time, does not find it in a static program, and wants
    // /dev/urandom instead.
    flags.push_str(" --cfg getrandom_backend=\"linux_getrandom\"");
    run::executable(command.env("RUSTFLAGS", flags.trim()), "aftershock-proxy")
}

/// The target that this machine's compiler builds for by itself.
fn host() -> anyhow::Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").current_dir(run::root()).output().context("failed to start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned).context("rustc told no host")
}

/// Puts it alone into a folder, makes that its root, and sends a request through it. False if that is not allowed here.
fn serve_from_empty_root(program: &Path) -> anyhow::Result<bool> {
    let root = tempfile::tempdir()?;
    let application = TcpListener::bind("127.0.0.1:0")?;
    // The sidecar does not tell which port it was given without a controller, so it gets one that was free a moment ago.
    let listen = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    std::fs::copy(program, root.path().join("aftershock-proxy"))?;
    let config = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: Sidecar\nservice: whole\ninbound:\n  - {{listen: '{listen}', to: '{}'}}\n",
        application.local_addr()?
    );
    std::fs::write(root.path().join("sidecar.yaml"), config)?;
    let Some(mut command) = chroot() else { return Ok(false) };
    command.arg(root.path()).args(["/aftershock-proxy", "--exit-with-stdin", "--config", "/sidecar.yaml"]);
    let mut sidecar = Running(command.env("AFTERSHOCK_LOG", "warn").stdin(Stdio::piped()).spawn()?);
    std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = application.accept()?;
        let mut seen = Vec::new();
        let mut buffer = [0; 1024];
        while !seen.ends_with(b"\r\n\r\n") {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                read => seen.extend_from_slice(&buffer[..read]),
            }
        }
        stream.write_all(ANSWER.as_bytes())
    });
    let mut stream = connect(listen, &mut sidecar.0)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: whole\r\n\r\n")?;
    let mut answer = vec![0; ANSWER.len()];
    stream.read_exact(&mut answer).context("no answer from an empty root")?;
    ensure!(answer == ANSWER.as_bytes(), "another answer from an empty root: {}", String::from_utf8_lossy(&answer));
    Ok(true)
}

/// `chroot`, as far as this user may.
fn chroot() -> Option<Command> {
    let may = |command: &mut Command| {
        let status = command.args(["/", "/bin/true"]).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let root = || Command::new("chroot");
    let unshared = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--", "chroot"]);
        command
    };
    if may(&mut root()) { Some(root()) } else { may(&mut unshared()).then(unshared) }
}

fn connect(address: SocketAddr, sidecar: &mut Child) -> anyhow::Result<TcpStream> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Ok(stream) = TcpStream::connect(address) {
            return Ok(stream);
        }
        if let Some(status) = sidecar.try_wait()? {
            bail!("the sidecar ended with {status} in an empty root");
        }
        ensure!(Instant::now() < until, "the sidecar does not listen after {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
