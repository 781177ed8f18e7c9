//! What `generate` writes is what was asked for, and what `inject` takes.

use crate::support::{System, run};

const TOPOLOGY: &str = "topologies/fig2-patterns.yaml";

#[test]
fn a_competing_answer_becomes_an_atom_with_or_without_a_pattern() {
    let system = System::start(TOPOLOGY, &[]);
    let scenario = system.file("scenarios/fig2-patterns/signup.yaml", |text| text);
    let control = ["--control", &system.url];
    run(&[&["record", &scenario, "--rounds", "3"][..], &control].concat()).expect(0);
    let out = system.folder.path().join("generated.yaml");
    let common = [
        "generate",
        &scenario,
        "--api",
        "Check",
        "--after",
        "CreateUser",
        "--hold",
        "1s",
        "--out",
        out.to_str().unwrap(),
    ];
    for pattern in [&[][..], &["--pattern", "order-sensitive"]] {
        run(&[&common[..], pattern, &control].concat()).expect(0);
        let written = std::fs::read_to_string(&out).unwrap();
        assert!(written.contains("user fig2.User/CreateUser"), "{pattern:?}:\n{written}");
    }
}

#[test]
fn a_fault_that_inject_would_refuse_is_not_written() {
    let system = System::start(TOPOLOGY, &[]);
    let scenario = system.file("scenarios/fig2-patterns/checkout.yaml", |text| text);
    let control = ["--control", &system.url];
    run(&[&["record", &scenario, "--rounds", "3"][..], &control].concat()).expect(0);
    let out = system.folder.path().join("generated.yaml");
    for (api, wrong, says, right) in
        [("Charge", "error=503", "is gRPC", "error=14"), ("POST /checkout", "error=14", "is HTTP", "error=503")]
    {
        let generate = ["generate", &scenario, "--api", api, "--out", out.to_str().unwrap(), "--fault"];
        let refused = run(&[&generate[..], &[wrong], &control].concat()).expect(1);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
        assert!(!out.exists());
        run(&[&generate[..], &[right], &control].concat()).expect(0);
        std::fs::remove_file(&out).unwrap();
    }
}
