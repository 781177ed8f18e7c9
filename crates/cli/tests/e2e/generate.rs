//! What `generate` writes is what was asked for, and what `inject` takes.

use crate::support::{System, free_port, run, serve};

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

#[test]
fn recordings_taken_from_one_controller_serve_to_generate_at_another() {
    let system = System::start(TOPOLOGY, &[]);
    let scenario = system.file("scenarios/fig2-patterns/checkout.yaml", |text| text);
    run(&["record", &scenario, "--rounds", "3", "--control", &system.url]).expect(0);
    let exported = system.folder.path().join("recordings.json");
    let exported = exported.to_str().unwrap();
    run(&["store", "export", "fig2-checkout", "--out", exported, "--control", &system.url]).expect(0);
    let unknown = run(&["store", "export", "fig2-chekout", "--control", &system.url]).expect(1);
    assert!(unknown.stderr.contains("did you mean \"fig2-checkout\"?"), "{}", unknown.stderr);

    let elsewhere = tempfile::tempdir().unwrap();
    let url = format!("http://127.0.0.1:{}", free_port());
    let _other = serve(&url, elsewhere.path());
    run(&["status", "--wait", "0", "--control", &url]).expect(0);
    for (stored, present) in [(3, 0), (0, 3)] {
        let imported = run(&["store", "import", exported, "--control", &url, "--format", "json"]).expect(0).json();
        assert_eq!(imported, serde_json::json!({"stored": stored, "present": present}));
    }
    let generated = run(&["generate", &scenario, "--api", "Charge", "--control", &url]).expect(0);
    assert!(generated.stdout.contains("Charge"), "{}", generated.stdout);

    let torn = system.folder.path().join("torn.json");
    let text = std::fs::read_to_string(exported).unwrap();
    std::fs::write(&torn, &text[..text.len() / 2]).unwrap();
    let refused = run(&["store", "import", torn.to_str().unwrap(), "--control", &url]).expect(1);
    assert!(refused.stderr.contains("torn.json") && refused.stderr.contains("line"), "{}", refused.stderr);
}
