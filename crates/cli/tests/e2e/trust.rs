//! A controller that asks for token and certificate, with sidecars and commands that show them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::support::{Finished, Running, aftershock, alone, eventually, free_port, root};

const TOKEN: &str = "1c5f7f0be2a94f10a0d3c1b2a3948576";
const WRONG: &str = "ffffffffffffffffffffffffffffffff";

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// An authority, a certificate of it for this machine and one for clients: paths.
struct Papers {
    ca: String,
    cert: String,
    key: String,
}

fn papers(folder: &Path) -> Papers {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    Papers {
        ca: write(folder, "ca.pem", &authority.pem()),
        cert: write(folder, "cert.pem", &leaf.pem()),
        key: write(folder, "key.pem", &key.serialize_pem()),
    }
}

/// Whether `text` is in a file, which somebody may still write.
fn says(file: &Path, text: &str) -> bool {
    std::fs::read_to_string(file).is_ok_and(|said| said.contains(text))
}

fn shown<'a>(url: &'a str, token: &'a str, papers: &'a Papers) -> [&'a str; 10] {
    let Papers { ca, cert, key } = papers;
    ["--controller", url, "--token-file", token, "--ca", ca, "--cert", cert, "--key", key]
}

fn run(arguments: &[&str], shown: &[&str]) -> Finished {
    aftershock(arguments).args(shown).output().unwrap().into()
}

#[test]
fn over_tls_with_token_and_certificate_sidecars_register_and_a_round_runs_while_keys_are_exchanged() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let papers = papers(folder.path());
    let tokens = write(folder.path(), "tokens", &format!("# both\n{TOKEN}\n"));
    let wrong = write(folder.path(), "wrong", WRONG);
    let port = free_port();
    let url = format!("https://127.0.0.1:{port}");
    let log = folder.path().join("control.log");
    let store = folder.path().join("rounds.db");
    let mut control = aftershock(&["control", "serve", "--listen", &url["https://".len()..]]);
    control.args(["--store", store.to_str().unwrap(), "--token-file", &tokens, "--rotate-keys", "1s"]);
    control.args(["--tls-cert", &papers.cert, "--tls-key", &papers.key, "--client-ca", &papers.ca]);
    control.env("AFTERSHOCK_LOG", "debug");
    let _control = Running::start(control.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap()));
    let subnet = format!("127.{}.{}", 1 + port / 256 % 254, port % 256);
    let topology = root().join("crates/cli/tests/e2e/files/table.yaml");
    let mut lab = aftershock(&["lab", "up", "--file", topology.to_str().unwrap(), "--subnet", &subnet]);
    lab.args(shown(&url, &tokens, &papers));
    let _lab = Running::start(lab.stdout(Stdio::null()).stderr(Stdio::null()));
    let known = shown(&url, &tokens, &papers);
    run(&["status", "--wait", "3"], &known).expect(0);

    let scenario = format!(
        "apiVersion: aftershock.dev/v1alpha1\nkind: Scenario\nmetadata: {{name: web}}\nspec:\n  entry: \
         http://{subnet}.1:8080\n  key: web-{{random}}\n  requests:\n    - name: it\n      http: {{method: POST, path: \
         /web, headers: {{content-type: application/json}}, body: '{{\"key\":\"{{key}}\"}}'}}\n      timeout: 10s\n      \
         expect: {{status: 200}}\n"
    );
    let scenario = write(folder.path(), "web.yaml", &scenario);
    // With the first key, and with the second while both are taken.
    run(&["record", &scenario, "--rounds", "3"], &known).expect(0);
    eventually("the sidecars sign with another key", || says(&log, "every sidecar signs with the new key"));
    run(&["record", &scenario, "--rounds", "3"], &known).expect(0);
    let status = run(&["status", "--format", "json"], &known).expect(0).json();
    for sidecar in status["sidecars"].as_array().unwrap() {
        assert!(sidecar["ignored"].as_object().unwrap().is_empty(), "{sidecar:#}");
    }
    let rounds = run(&["rounds", "--format", "json"], &known).expect(0).json();
    assert_eq!(rounds.as_array().unwrap().len(), 6, "{rounds:#}");

    // Whoever shows less, or something else, is turned away, and told what is missing.
    let before = status["turned_away"].as_u64().unwrap();
    let refused = run(&["status"], &shown(&url, &wrong, &papers)).expect(1);
    assert!(refused.stderr.contains("--token-file") && !refused.stderr.contains(WRONG), "{}", refused.stderr);
    let refused = run(&["status"], &["--controller", &url, "--token-file", &tokens, "--ca", &papers.ca]).expect(1);
    assert!(!refused.stderr.contains(TOKEN), "{}", refused.stderr);
    let status = run(&["status"], &known).expect(0);
    assert!(status.stdout.contains(&format!("certificate: {}", before + 2)), "{}", status.stdout);
    eventually("the controller told of who was turned away", || says(&log, "turned away: no valid token"));
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(!said.contains(TOKEN) && !said.contains(WRONG), "no token is in the log");
    assert!(!String::from_utf8_lossy(&std::fs::read(&store).unwrap()).contains(TOKEN), "nor in the store");
}

#[test]
fn a_token_may_stand_in_the_environment_and_is_never_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = write(folder.path(), "tokens", TOKEN);
    let url = format!("http://127.0.0.1:{}", free_port());
    let store = folder.path().join("rounds.db");
    let mut control = aftershock(&["control", "serve", "--listen", &url["http://".len()..]]);
    control.args(["--store", store.to_str().unwrap(), "--token-file", &tokens]);
    let _control = Running::start(control.stdout(Stdio::null()).stderr(Stdio::null()));
    let status = |token: &str| -> Finished {
        let mut command = aftershock(&["status", "--wait", "0", "--controller", &url]);
        command.env("AFTERSHOCK_TOKEN", token).output().unwrap().into()
    };
    status(TOKEN).expect(0);
    let short = status("short-secret").expect(1);
    assert!(short.stderr.contains("AFTERSHOCK_TOKEN: expected a token") && !short.stderr.contains("short-secret"));
    let away = aftershock(&["status", "--controller", "http://controller.test:4700"])
        .env("AFTERSHOCK_TOKEN", TOKEN)
        .output()
        .map(Finished::from)
        .unwrap()
        .expect(1);
    assert!(away.stderr.contains("must not travel unencrypted to controller.test"), "{}", away.stderr);
}

#[test]
fn a_controller_that_others_could_reach_does_not_start_without_asking_for_anything() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("rounds.db");
    let tokens = write(folder.path(), "tokens", TOKEN);
    let serve = |more: &[&str]| {
        let mut command =
            aftershock(&["control", "serve", "--listen", "0.0.0.0:0", "--store", store.to_str().unwrap()]);
        Running::start(piped(command.args(more))).wait(Duration::from_secs(30)).expect(1).stderr
    };
    assert!(serve(&[]).contains("`--token-file F`"));
    assert!(serve(&["--token-file", &tokens]).contains("`--tls-cert F --tls-key F`"));
    let missing = PathBuf::from(&tokens).with_extension("missing");
    let missing = serve(&["--token-file", missing.to_str().unwrap()]);
    assert!(missing.contains("cannot read the token in"), "{missing}");
    assert!(!store.exists(), "nothing was made");
}

fn piped(command: &mut Command) -> &mut Command {
    command.stdout(Stdio::piped()).stderr(Stdio::piped())
}
