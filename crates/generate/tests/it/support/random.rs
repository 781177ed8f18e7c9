//! Random call trees.

use super::{Node, Random, Todo, call};
use aftershock_core::event::Outcome;

/// A call tree over few services and operations, so that Apis repeat, branches share callees, and services call back
/// into services above them.
pub(crate) fn tree(random: &mut Random) -> Node {
    let mut left = 14;
    node(random, 0, &mut left)
}

fn node(random: &mut Random, depth: u32, left: &mut u32) -> Node {
    let service = if depth == 0 { 0 } else { random.below(4) };
    let operation = random.below(2);
    let mut node = call(&format!("s{service} t.S{service}/M{operation}"), 200 * random.below(8), Vec::new());
    if random.one_in(8) {
        node.outcome = Outcome::Error;
    }
    if depth < 3 {
        node.steps = steps(random, depth, left);
    }
    node
}

fn steps(random: &mut Random, depth: u32, left: &mut u32) -> Vec<Todo> {
    let mut steps = Vec::new();
    for _ in 0..random.below(4) {
        if *left == 0 {
            break;
        }
        *left -= 1;
        if random.one_in(3) {
            let branches = (0..2 + random.below(2)).map(|_| steps_of_branch(random, depth, left)).collect();
            steps.push(Todo::Parallel { branches, first: random.one_in(4) });
        } else {
            steps.push(Todo::Call(node(random, depth + 1, left)));
        }
    }
    steps
}

fn steps_of_branch(random: &mut Random, depth: u32, left: &mut u32) -> Vec<Todo> {
    (0..1 + random.below(2))
        .map_while(|_| {
            *left = left.checked_sub(1)?;
            Some(Todo::Call(node(random, depth + 1, left)))
        })
        .collect()
}
