//! Exact minimum hitting sets, with the ties of design §4.2.
//!
//! Given clauses (sets of elements), find a smallest set that has an element in common with each. Among smallest sets
//! one is preferred that holds the target's own event; then one with fewer elements that are not local; then one whose
//! smallest margin is larger; then the lexicographically first, comparing the elements in the order own, local, larger
//! margin, given order.
//!
//! Branch and bound by iterative deepening: for each size from a lower bound on, branch over the elements of the
//! uncovered clause with the fewest, excluding in each branch the elements of the earlier ones; prune where pairwise
//! disjoint uncovered clauses need more elements than are left. Bounded by a number of nodes, never by time, so that the
//! same input gives the same answer on any machine.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use serde::Serialize;

/// What ties are broken by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element {
    /// It counts the target's own event at its caller.
    pub own: bool,
    /// The acting sidecar observes it itself.
    pub local: bool,
    /// How far it is from being true too early.
    pub margin: u64,
}

/// A smallest hitting set, the first in the order of the ties, and why there is no smaller one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Minimum {
    /// Indices of its elements, ascending.
    pub elements: Vec<usize>,
    /// Why none is smaller.
    pub proof: Proof,
}

/// Why there is no smaller hitting set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proof {
    /// These clauses, as many as the set has elements, have no element in common: each needs one of its own.
    Disjoint(Vec<usize>),
    /// Every smaller set was excluded by search; so many nodes were visited in all.
    Exhausted(u64),
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HittingSetError {
    /// A clause without elements cannot be hit.
    #[error("clause {0} is empty")]
    Empty(usize),
    /// A clause names an element that does not exist.
    #[error("clause {clause} names element {element} of {elements}")]
    UnknownElement {
        /// The clause.
        clause: usize,
        /// The element it names.
        element: usize,
        /// How many there are.
        elements: usize,
    },
    /// The instance is too large for the node budget.
    #[error("no answer within {nodes} nodes: {elements} elements, {clauses} clauses, at least {lower_bound} needed")]
    TooLarge {
        /// The budget.
        nodes: u64,
        /// Elements that are left after reduction.
        elements: usize,
        /// Clauses that are left after reduction.
        clauses: usize,
        /// Smaller sets than this were excluded.
        lower_bound: usize,
    },
}

/// Nodes that are visited before an instance counts as too large: about a second.
pub const NODE_BUDGET: u64 = 2_000_000;

/// A smallest hitting set of `clauses` over `elements`, given in lexicographic order.
///
/// # Errors
/// When a clause is empty or names an element that does not exist, and when the search visits more than `budget` nodes.
pub fn minimum(elements: &[Element], clauses: &[BTreeSet<usize>], budget: u64) -> Result<Minimum, HittingSetError> {
    for (clause, set) in clauses.iter().enumerate() {
        let Some(last) = set.last() else { return Err(HittingSetError::Empty(clause)) };
        if *last >= elements.len() {
            return Err(HittingSetError::UnknownElement { clause, element: *last, elements: elements.len() });
        }
    }
    let reduced = Reduced::of(elements, clauses);
    let root = Node::root(&reduced);
    let packing = root.packing(&reduced);
    let mut search = Search { reduced: &reduced, budget, nodes: 0, best: None };
    for size in packing.len()..=reduced.elements.len() {
        search.descend(&mut Node::root(&reduced), size).map_err(|Spent| HittingSetError::TooLarge {
            nodes: budget,
            elements: reduced.elements.iter().filter(|element| !element.hits.is_empty()).count(),
            clauses: reduced.clauses.len(),
            lower_bound: size,
        })?;
        if let Some((_, chosen)) = &search.best {
            let mut found: Vec<usize> = chosen.iter().map(|rank| reduced.elements[*rank].given).collect();
            found.sort_unstable();
            let proof = if packing.len() == size {
                Proof::Disjoint(packing.iter().map(|clause| reduced.clauses[*clause].given).collect())
            } else {
                Proof::Exhausted(search.nodes)
            };
            return Ok(Minimum { elements: found, proof });
        }
    }
    unreachable!("the set of all elements hits every clause that is not empty")
}

/// An instance without what cannot matter: clauses that contain another one, and dominated elements.
struct Reduced {
    /// By rank: own, local, larger margin, given order.
    elements: Vec<Ranked>,
    clauses: Vec<Clause>,
}

struct Ranked {
    element: Element,
    given: usize,
    /// Clauses, by index in [`Reduced::clauses`].
    hits: Vec<usize>,
}

struct Clause {
    given: usize,
    /// Ranks of its elements, ascending.
    elements: Vec<usize>,
}

impl Reduced {
    fn of(elements: &[Element], clauses: &[BTreeSet<usize>]) -> Reduced {
        let mut order: Vec<usize> = (0..elements.len()).collect();
        order.sort_by_key(|given| {
            let Element { own, local, margin } = elements[*given];
            (Reverse(own), Reverse(local), Reverse(margin), *given)
        });
        let mut kept: Vec<(usize, &BTreeSet<usize>)> = Vec::new();
        let mut by_size: Vec<usize> = (0..clauses.len()).collect();
        by_size.sort_by_key(|clause| (clauses[*clause].len(), *clause));
        for clause in by_size {
            if !kept.iter().any(|(_, smaller)| smaller.is_subset(&clauses[clause])) {
                kept.push((clause, &clauses[clause]));
            }
        }
        kept.sort_unstable_by_key(|(given, _)| *given);
        let hits = |given: usize| -> Vec<usize> {
            kept.iter().enumerate().filter(|(_, (_, set))| set.contains(&given)).map(|(clause, _)| clause).collect()
        };
        let mut ranked: Vec<Ranked> =
            order.into_iter().map(|given| Ranked { element: elements[given], given, hits: hits(given) }).collect();
        // Put a dominating element in place of the dominated one: the set stays as small, and each tie gets better or
        // stays. So no best set has a dominated element.
        let dominated: Vec<usize> =
            (0..ranked.len()).filter(|rank| (0..*rank).any(|other| ranked[other].dominates(&ranked[*rank]))).collect();
        for rank in dominated {
            ranked[rank].hits.clear();
        }
        let clauses = kept
            .iter()
            .enumerate()
            .map(|(clause, (given, _))| Clause {
                given: *given,
                elements: (0..ranked.len()).filter(|rank| ranked[*rank].hits.contains(&clause)).collect(),
            })
            .collect();
        Reduced { elements: ranked, clauses }
    }
}

impl Ranked {
    /// Of a lower rank than `other`, it does everything that `other` does and is as good in each tie.
    fn dominates(&self, other: &Ranked) -> bool {
        self.element.own >= other.element.own
            && self.element.local >= other.element.local
            && self.element.margin >= other.element.margin
            && other.hits.iter().all(|clause| self.hits.contains(clause))
    }
}

/// Smaller is better.
type Cost = (bool, usize, Reverse<u64>);

struct Node {
    /// Ranks.
    chosen: Vec<usize>,
    /// How often each element is excluded by the branches above.
    excluded: Vec<u32>,
    /// How many chosen elements each clause has.
    covered: Vec<u32>,
}

impl Node {
    fn root(reduced: &Reduced) -> Node {
        Node { chosen: Vec::new(), excluded: vec![0; reduced.elements.len()], covered: vec![0; reduced.clauses.len()] }
    }

    fn free<'a>(&'a self, clause: &'a Clause) -> impl Iterator<Item = usize> + 'a {
        clause.elements.iter().copied().filter(|rank| self.excluded[*rank] == 0)
    }

    fn open(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.covered.len()).filter(|clause| self.covered[*clause] == 0)
    }

    /// Uncovered clauses that are pairwise disjoint, greedily those with few elements first.
    fn packing(&self, reduced: &Reduced) -> Vec<usize> {
        let mut open: Vec<usize> = self.open().collect();
        open.sort_by_key(|clause| (self.free(&reduced.clauses[*clause]).count(), *clause));
        let mut taken = vec![false; reduced.elements.len()];
        open.retain(|clause| {
            let clause = &reduced.clauses[*clause];
            let disjoint = self.free(clause).all(|rank| !taken[rank]);
            if disjoint {
                self.free(clause).for_each(|rank| taken[rank] = true);
            }
            disjoint
        });
        open.sort_unstable();
        open
    }

    fn choose(&mut self, reduced: &Reduced, rank: usize) {
        self.chosen.push(rank);
        reduced.elements[rank].hits.iter().for_each(|clause| self.covered[*clause] += 1);
    }

    fn unchoose(&mut self, reduced: &Reduced, rank: usize) {
        self.chosen.pop();
        reduced.elements[rank].hits.iter().for_each(|clause| self.covered[*clause] -= 1);
    }

    fn cost(&self, reduced: &Reduced) -> Cost {
        let chosen = || self.chosen.iter().map(|rank| reduced.elements[*rank].element);
        (
            !chosen().any(|element| element.own),
            chosen().filter(|element| !element.local).count(),
            Reverse(chosen().map(|element| element.margin).min().unwrap_or(u64::MAX)),
        )
    }
}

/// The node budget is spent.
struct Spent;

struct Search<'a> {
    reduced: &'a Reduced,
    budget: u64,
    nodes: u64,
    /// The best set of the size at hand: its cost and its ranks, ascending.
    best: Option<(Cost, Vec<usize>)>,
}

impl Search<'_> {
    fn descend(&mut self, node: &mut Node, size: usize) -> Result<(), Spent> {
        self.nodes += 1;
        if self.nodes > self.budget {
            return Err(Spent);
        }
        let narrowest = node.open().min_by_key(|clause| (node.free(&self.reduced.clauses[*clause]).count(), *clause));
        let Some(clause) = narrowest else {
            // Smaller sizes were searched before, so a cover has exactly `size` elements.
            let mut chosen = node.chosen.clone();
            chosen.sort_unstable();
            let found = (node.cost(self.reduced), chosen);
            if self.best.as_ref().is_none_or(|best| found < *best) {
                self.best = Some(found);
            }
            return Ok(());
        };
        if node.chosen.len() + node.packing(self.reduced).len() > size || self.hopeless(node) {
            return Ok(());
        }
        let branches: Vec<usize> = node.free(&self.reduced.clauses[clause]).collect();
        for rank in &branches {
            node.choose(self.reduced, *rank);
            self.descend(node, size)?;
            node.unchoose(self.reduced, *rank);
            node.excluded[*rank] += 1;
        }
        for rank in &branches {
            node.excluded[*rank] -= 1;
        }
        Ok(())
    }

    /// Whether no completion of `node` can be better than the best set known.
    fn hopeless(&self, node: &Node) -> bool {
        let Some((best, _)) = &self.best else { return false };
        let (no_own, remote, margin) = node.cost(self.reduced);
        let own_left =
            || (0..node.excluded.len()).any(|r| node.excluded[r] == 0 && self.reduced.elements[r].element.own);
        let optimistic: Cost = (no_own && !own_left(), remote, margin);
        optimistic > *best
    }
}
