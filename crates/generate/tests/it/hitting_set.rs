//! The solver against every subset of small instances.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use aftershock_generate::hitting_set::{Element, HittingSetError, Minimum, NODE_BUDGET, Proof, minimum};
use proptest::prelude::*;

/// The order of the ties, written down a second time.
fn preference(elements: &[Element], set: &[usize]) -> impl Ord + use<> {
    let all = || set.iter().map(|index| elements[*index]);
    let mut order: Vec<_> =
        set.iter().map(|i| (!elements[*i].own, !elements[*i].local, Reverse(elements[*i].margin), *i)).collect();
    order.sort();
    (
        set.len(),
        !all().any(|element| element.own),
        all().filter(|element| !element.local).count(),
        Reverse(all().map(|element| element.margin).min().unwrap_or(u64::MAX)),
        order,
    )
}

fn hits(set: &[usize], clauses: &[BTreeSet<usize>]) -> bool {
    clauses.iter().all(|clause| set.iter().any(|element| clause.contains(element)))
}

fn best_of_all_subsets(elements: &[Element], clauses: &[BTreeSet<usize>]) -> Option<Vec<usize>> {
    (0..1_u32 << elements.len())
        .map(|bits| (0..elements.len()).filter(|i| bits & (1 << i) != 0).collect::<Vec<_>>())
        .filter(|set| hits(set, clauses))
        .min_by_key(|set| preference(elements, set))
}

fn instances() -> impl Strategy<Value = (Vec<Element>, Vec<BTreeSet<usize>>)> {
    (1_usize..10).prop_flat_map(|n| {
        let element = (prop::bool::weighted(0.15), any::<bool>(), 1_u64..4);
        let elements =
            prop::collection::vec(element.prop_map(|(own, local, margin)| Element { own, local, margin }), n);
        let clauses = prop::collection::vec(prop::collection::btree_set(0..n, 1..=n.min(4)), 0..9);
        (elements, clauses)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn the_first_smallest_of_all_subsets_is_found((elements, clauses) in instances()) {
        let found = minimum(&elements, &clauses, NODE_BUDGET).unwrap();
        prop_assert_eq!(Some(found.elements.clone()), best_of_all_subsets(&elements, &clauses));
        if let Proof::Disjoint(disjoint) = &found.proof {
            prop_assert_eq!(disjoint.len(), found.elements.len());
            let all: usize = disjoint.iter().map(|clause| clauses[*clause].len()).sum();
            let union: BTreeSet<usize> = disjoint.iter().flat_map(|clause| clauses[*clause].iter().copied()).collect();
            prop_assert_eq!(all, union.len(), "the clauses of the proof share an element");
        }
    }

    #[test]
    fn the_order_and_number_of_equal_clauses_do_not_matter((elements, clauses) in instances()) {
        let turned: Vec<_> = clauses.iter().rev().chain(&clauses).cloned().collect();
        prop_assert_eq!(
            minimum(&elements, &clauses, NODE_BUDGET).unwrap().elements,
            minimum(&elements, &turned, NODE_BUDGET).unwrap().elements
        );
    }
}

const PLAIN: Element = Element { own: false, local: false, margin: 1 };

#[test]
fn nothing_to_hit_needs_nothing() {
    let found = minimum(&[PLAIN], &[], NODE_BUDGET).unwrap();
    assert_eq!(found, Minimum { elements: vec![], proof: Proof::Disjoint(vec![]) });
}

#[test]
fn ties_go_to_own_then_local_then_margin_then_order() {
    let one = |elements: [Element; 2]| minimum(&elements, &[BTreeSet::from([0, 1])], NODE_BUDGET).unwrap().elements;
    let local = Element { local: true, ..PLAIN };
    assert_eq!(one([local, Element { own: true, ..PLAIN }]), [1]);
    assert_eq!(one([Element { margin: 9, ..PLAIN }, local]), [1]);
    assert_eq!(one([PLAIN, Element { margin: 2, ..PLAIN }]), [1]);
    assert_eq!(one([PLAIN, PLAIN]), [0]);
}

#[test]
fn a_triangle_needs_two_which_only_search_can_prove() {
    let clauses = [[0, 1], [1, 2], [0, 2]].map(BTreeSet::from);
    let found = minimum(&[PLAIN; 3], &clauses, NODE_BUDGET).unwrap();
    assert_eq!(found.elements, [0, 1]);
    assert!(matches!(found.proof, Proof::Exhausted(nodes) if nodes > 1), "{:?}", found.proof);
}

#[test]
fn what_cannot_be_hit_or_does_not_exist_is_named() {
    assert_eq!(minimum(&[PLAIN], &[BTreeSet::from([0]), BTreeSet::new()], 9), Err(HittingSetError::Empty(1)));
    let unknown = HittingSetError::UnknownElement { clause: 0, element: 1, elements: 1 };
    assert_eq!(minimum(&[PLAIN], &[BTreeSet::from([1])], 9), Err(unknown));
}

/// All sets of `of` elements, as clauses: any hitting set leaves out at most `of - 1` of them.
fn every(of: usize, elements: usize) -> Vec<BTreeSet<usize>> {
    (0..1_u32 << elements)
        .filter(|bits| bits.count_ones() as usize == of)
        .map(|bits| (0..elements).filter(|i| bits & (1 << i) != 0).collect())
        .collect()
}

#[test]
fn the_search_is_bounded_by_nodes_and_says_how_far_it_came() {
    let clauses = every(3, 12);
    let error = minimum(&[PLAIN; 12], &clauses, 50).unwrap_err();
    assert!(
        matches!(error, HittingSetError::TooLarge { nodes: 50, elements: 12, clauses: 220, lower_bound: 4..=9 }),
        "{error}"
    );
    assert_eq!(minimum(&[PLAIN; 12], &clauses, NODE_BUDGET).unwrap().elements.len(), 10);
}
