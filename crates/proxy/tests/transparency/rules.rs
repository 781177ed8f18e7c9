//! Rules that change while traffic flows: whoever was told that they are in force may rely on it, whenever its connection
//! was opened.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aftershock_core::id::Token;
use aftershock_core::wire::{Arm, FromController, Tagging};

use crate::support::brain::Back;
use crate::support::load::{answer_all, response};
use crate::support::rules::{abort, everywhere};
use crate::support::wire::{HANG, connect};

#[test]
fn after_the_acknowledgement_every_request_sees_the_new_rules() {
    const CLIENTS: usize = 8;
    // What is armed, for how many in a million of all requests; what every request then gets.
    let stages = [
        (None, "200"),
        (Some(("/load", 1_000_000)), "503"),
        (Some(("/nobody-calls-this", 1_000_000)), "200"),
        (Some(("/load", 1_000_000)), "503"),
        (Some(("/load", 0)), "200"),
        (None, "200"),
    ];
    let (sidecar, mut controller) = Back::before(answer_all()).told();
    // Even while a stage is in force, odd while it changes.
    let (stage, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let judged: Vec<AtomicUsize> = (0..CLIENTS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for judged in &judged {
            scope.spawn(|| {
                let mut stream = connect(sidecar.address);
                while !over.load(Ordering::SeqCst) {
                    let before = stage.load(Ordering::SeqCst);
                    stream.write_all(b"GET /load HTTP/1.1\r\nHost: h\r\n\r\n").expect("the connection stays");
                    let seen = response(&mut stream).expect("an answer on the same connection");
                    if before.is_multiple_of(2) && before == stage.load(Ordering::SeqCst) {
                        let (armed, expected) = stages[before / 2];
                        assert_eq!(seen.split(' ').nth(1), Some(expected), "{armed:?}: {seen}");
                        judged.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let mut last = None;
        for (number, (armed, _)) in stages.iter().enumerate() {
            if number > 0 {
                stage.fetch_add(1, Ordering::SeqCst);
                if let Some(token) = last.take() {
                    controller.say(FromController::Disarm { token });
                    controller.say(FromController::End { token });
                }
                if let Some((path, per_million)) = armed {
                    let token = Token(number as u64);
                    controller.say(FromController::Arm(Arm {
                        rules: vec![everywhere(abort(&format!("back GET {path}")))],
                        tagging: Some(Tagging { headers: BTreeMap::new(), per_million: *per_million }),
                        ..Arm::clean(token, Duration::from_secs(3600))
                    }));
                    last = Some(token);
                }
                stage.fetch_add(1, Ordering::SeqCst);
            }
            // Every connection, each opened before all of this, has its share of every stage.
            let wanted: Vec<_> = judged.iter().map(|judged| judged.load(Ordering::SeqCst) + 50).collect();
            let begun = Instant::now();
            while judged.iter().zip(&wanted).any(|(judged, wanted)| judged.load(Ordering::SeqCst) < *wanted) {
                if begun.elapsed() > HANG {
                    over.store(true, Ordering::SeqCst);
                    panic!("stage {number} does not come about: {judged:?}");
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    let mut silent = connect(sidecar.address);
    silent.write_all(b"GET /load HTTP/1.0\r\n\r\n").expect("open");
    assert!(silent.read(&mut [0; 100]).is_ok_and(|read| read > 0));
}
