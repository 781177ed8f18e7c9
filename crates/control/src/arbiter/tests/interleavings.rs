//! Every interleaving of a few sidecars that do what the text says, with their ordered connections, timeouts, callers
//! that leave, held messages whose guard turns true, and deaths.

use std::collections::{HashSet, VecDeque};

use super::*;

/// How a pass of a sidecar stands.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stand {
    /// Not there yet.
    Coming,
    /// Asked, and not answered.
    Asked,
    /// Told to wait, parked.
    Parked,
    Fired,
    /// It went on, or its caller did.
    Gone,
}

#[derive(Debug, Clone, Copy)]
struct Message {
    execution: u64,
    n: u64,
    /// Whether its guard holds when it comes.
    ready: bool,
    stand: Stand,
}

#[derive(Debug, Clone)]
struct Instance {
    passes: Vec<Message>,
    up: VecDeque<Told>,
    down: VecDeque<(u64, Ruling)>,
    /// Executions in which the rule has ended here.
    ended: BTreeSet<u64>,
    alive: bool,
}

#[derive(Debug, Clone)]
struct World {
    arbiter: Arbiter,
    instances: Vec<Instance>,
    /// Passes that fired, whether or not the arbiter heard of it.
    fired: Vec<(u64, u64)>,
    /// Passes in the order in which the arbiter heard of them, by execution.
    arrived: BTreeMap<u64, Vec<u64>>,
    /// Nothing went wrong so far.
    smooth: bool,
}

/// What may go wrong.
#[derive(Debug, Clone, Copy)]
struct Trouble {
    timeouts: bool,
    leaving: bool,
    deaths: bool,
}

const NONE: Trouble = Trouble { timeouts: false, leaving: false, deaths: false };

impl World {
    /// Each instance's passes, as (execution, ready).
    fn new(arbiter: Arbiter, passes: &[&[(u64, bool)]]) -> World {
        let mut n = 0;
        let instances = passes.iter().enumerate().map(|(i, passes)| Instance {
            passes: passes
                .iter()
                .map(|(execution, ready)| {
                    n += 3;
                    // So that the observer that belongs to the call is this one.
                    Message { execution: *execution, n: n + i as u64, ready: *ready, stand: Stand::Coming }
                })
                .collect(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            ended: BTreeSet::new(),
            alive: true,
        });
        World { arbiter, instances: instances.collect(), fired: vec![], arrived: BTreeMap::new(), smooth: true }
    }

    /// What may happen next.
    fn next(&self, trouble: Trouble) -> Vec<World> {
        let mut worlds = Vec::new();
        for i in 0..self.instances.len() {
            let instance = &self.instances[i];
            // What was sent arrives, also after its sender's death.
            if !instance.up.is_empty() {
                worlds.push(self.with(|world| world.arrive(i)));
            }
            if !instance.alive {
                continue;
            }
            if !instance.down.is_empty() {
                worlds.push(
                    self.with(|world| world.instances[i].down.pop_front().into_iter().for_each(|m| world.hear(i, m))),
                );
            }
            if let Some(p) = instance.passes.iter().position(|pass| pass.stand == Stand::Coming) {
                worlds.push(self.with(|world| world.come(i, p)));
            }
            for (p, pass) in instance.passes.iter().enumerate() {
                if pass.stand == Stand::Parked && !pass.ready {
                    worlds.push(self.with(|world| world.turn_true(i, p)));
                }
                if trouble.timeouts && pass.stand == Stand::Asked {
                    worlds.push(self.with(|world| world.time_out(i, p)));
                }
                if trouble.leaving && matches!(pass.stand, Stand::Asked | Stand::Parked) {
                    worlds.push(self.with(|world| {
                        world.smooth = false;
                        world.instances[i].passes[p].stand = Stand::Gone;
                    }));
                }
            }
            if trouble.deaths {
                worlds.push(self.with(|world| {
                    world.smooth = false;
                    world.instances[i].alive = false;
                }));
            }
        }
        worlds
    }

    fn with(&self, act: impl FnOnce(&mut World)) -> World {
        let mut world = self.clone();
        act(&mut world);
        world
    }

    fn come(&mut self, i: usize, p: usize) {
        let instance = &mut self.instances[i];
        let Message { execution, n, ready, .. } = instance.passes[p];
        if instance.ended.contains(&execution) {
            instance.passes[p].stand = Stand::Gone;
            return;
        }
        instance.passes[p].stand = Stand::Asked;
        instance.up.push_back(Told::Ask { execution, n, ready, outcome: Outcome::Ok });
    }

    fn turn_true(&mut self, i: usize, p: usize) {
        let instance = &mut self.instances[i];
        instance.passes[p].ready = true;
        instance.passes[p].stand = Stand::Asked;
        let Message { execution, n, .. } = instance.passes[p];
        instance.up.push_back(Told::Ask { execution, n, ready: true, outcome: Outcome::Ok });
    }

    fn time_out(&mut self, i: usize, p: usize) {
        self.smooth = false;
        let instance = &mut self.instances[i];
        let Message { execution, n, .. } = instance.passes[p];
        instance.passes[p].stand = Stand::Gone;
        instance.ended.insert(execution);
        instance.up.push_back(Told::GiveUp { execution, n });
    }

    /// At the arbiter.
    fn arrive(&mut self, i: usize) {
        let told = self.instances[i].up.pop_front().unwrap();
        if let Told::Ask { execution, n, .. } = told {
            let arrived = self.arrived.entry(execution).or_default();
            if !arrived.contains(&n) {
                arrived.push(n);
            }
        }
        let (answer, released) = tell(&mut self.arbiter, told);
        if let (Some((_, ruling)), Told::Ask { n, .. }) = (answer, told) {
            self.instances[i].down.push_back((n, ruling));
        }
        for release in released {
            let to = release.observer.0 as usize;
            self.instances[to].down.push_back((release.call.0, Ruling::Spent));
        }
    }

    /// At a sidecar.
    fn hear(&mut self, i: usize, (n, ruling): (u64, Ruling)) {
        let instance = &mut self.instances[i];
        let p = instance.passes.iter().position(|pass| pass.n == n).unwrap();
        let Message { execution, stand, .. } = instance.passes[p];
        let waits = matches!(stand, Stand::Asked | Stand::Parked);
        match ruling {
            Ruling::Grant if waits && !instance.ended.contains(&execution) => {
                instance.passes[p].stand = Stand::Fired;
                instance.ended.insert(execution);
                instance.up.push_back(Told::Fired { execution, n });
                self.fired.push((execution, n));
            }
            Ruling::Grant => {
                instance.ended.insert(execution);
                if waits {
                    instance.passes[p].stand = Stand::Gone;
                }
                instance.up.push_back(Told::HandBack { execution, n });
            }
            Ruling::NotYet(_) if stand == Stand::Asked => instance.passes[p].stand = Stand::Parked,
            Ruling::Number | Ruling::Spent if waits => instance.passes[p].stand = Stand::Gone,
            Ruling::NotYet(_) | Ruling::Number | Ruling::Spent => {}
        }
    }

    /// What tells it from others for the future; the log does not.
    fn key(&self) -> String {
        format!("{:?} {:?} {:?} {:?} {}", self.arbiter.rules, self.instances, self.fired, self.arrived, self.smooth)
    }
}

/// Visit every world that `world` may become. Returns how many there were, and how many of them were ends.
fn explore(world: World, trouble: Trouble, limit: usize, mut at_end: impl FnMut(&World)) -> (usize, usize) {
    let mut seen: HashSet<String> = [world.key()].into();
    let mut open = vec![world];
    let mut ends = 0;
    while let Some(world) = open.pop() {
        let executions: BTreeSet<u64> = world.fired.iter().map(|(execution, _)| *execution).collect();
        assert_eq!(executions.len(), world.fired.len(), "twice in one execution: {world:#?}");
        let shots = &world.arbiter.rules[&0].shots;
        assert!(world.fired.len() <= limit && shots.taken <= limit as u32, "more than allowed: {world:#?}");
        let mut next = world.next(trouble);
        next.retain(|world| seen.insert(world.key()));
        if world.next(NONE).is_empty() {
            ends += 1;
            for instance in world.instances.iter().filter(|instance| instance.alive) {
                // What is still parked waits for a guard that never turns true.
                let stuck = |pass: &&Message| pass.stand == Stand::Asked || (pass.stand == Stand::Parked && pass.ready);
                assert_eq!(instance.passes.iter().find(stuck).map(|pass| pass.n), None, "left waiting: {world:#?}");
            }
            at_end(&world);
        }
        open.extend(next);
    }
    (seen.len(), ends)
}

#[test]
fn undisturbed_the_kth_pass_to_arrive_fires_in_every_execution() {
    for k in 1..=3 {
        let world = World::new(
            arbiter(json!(k), json!({"max_injections": "unlimited"})),
            &[&[(1, true), (1, true)], &[(1, true), (2, true)], &[(2, true)]],
        );
        let (worlds, ends) = explore(world, NONE, 9, |world| {
            for (execution, arrived) in &world.arrived {
                let fired: Vec<u64> = world.fired.iter().filter(|(e, _)| e == execution).map(|(_, n)| *n).collect();
                let expected: Vec<u64> = arrived.iter().skip(k - 1).take(1).copied().collect();
                assert_eq!(fired, expected, "{world:#?}");
            }
        });
        assert!(worlds > 100 && ends > 1, "{worlds} {ends}");
    }
}

#[test]
fn a_held_first_pass_fires_once_its_guard_turns_true_and_the_others_are_let_go() {
    let hold = json!({"hold": {"deadline": "1s"}, "max_injections": "unlimited"});
    let world = World::new(arbiter(json!("first"), hold), &[&[(1, false), (1, false)], &[(1, false), (2, false)]]);
    let (_, ends) = explore(world, NONE, 9, |world| {
        let executions: BTreeSet<u64> = world.fired.iter().map(|(execution, _)| *execution).collect();
        assert_eq!(executions, [1, 2].into(), "{world:#?}");
        let parked = world.instances.iter().flat_map(|i| &i.passes).filter(|pass| pass.stand == Stand::Parked);
        assert_eq!(parked.count(), 0, "{world:#?}");
    });
    assert!(ends > 1);
}

#[test]
fn with_timeouts_and_callers_that_leave_never_more_than_one_fires_and_nothing_waits() {
    let trouble = Trouble { timeouts: true, leaving: true, deaths: false };
    for (k, limit) in [(json!(2), 1), (json!("first"), 1), (json!("first"), 2)] {
        let more = json!({"max_injections": limit});
        let world = World::new(arbiter(k, more), &[&[(1, true), (2, true)], &[(1, true)]]);
        let (worlds, _) = explore(world, trouble, limit, |world| {
            let shots = &world.arbiter.rules[&0].shots;
            assert_eq!(shots.taken as usize, world.fired.len(), "every shot that was not fired came back: {world:#?}");
        });
        assert!(worlds > 500, "{worlds}");
    }
}

#[test]
fn a_shot_that_a_dead_sidecar_held_is_never_given_to_another() {
    let trouble = Trouble { timeouts: false, leaving: false, deaths: true };
    for limit in [1, 2] {
        let more = json!({"max_injections": limit});
        let world = World::new(arbiter(json!("first"), more), &[&[(1, true)], &[(1, true), (2, true)], &[(1, true)]]);
        explore(world, trouble, limit, |world| {
            let granted: Vec<(ExecutionId, CallId)> = world
                .arbiter
                .log
                .iter()
                .filter(|entry| matches!(entry.act, ArbiterAct::Ruled { ruling: Ruling::Grant, .. }))
                .map(|entry| (entry.execution, entry.call))
                .collect();
            let executions: BTreeSet<ExecutionId> = granted.iter().map(|(execution, _)| *execution).collect();
            assert_eq!((executions.len(), granted.len() <= limit), (granted.len(), true), "{world:#?}");
        });
    }
}

#[test]
fn held_passes_in_trouble_are_granted_once_at_most_and_never_left() {
    let trouble = Trouble { timeouts: true, leaving: true, deaths: false };
    let hold = json!({"hold": {"deadline": "1s"}});
    let world = World::new(arbiter(json!("first"), hold), &[&[(1, false)], &[(1, false), (1, true)]]);
    let (worlds, ends) = explore(world, trouble, 1, |_| {});
    assert!(worlds > 500 && ends > 1, "{worlds} {ends}");
}
