use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::{CHALLENGES_AT_ONCE, CHALLENGES_EACH_SECOND};
use super::*;

const ATTACKER: u32 = 66;

/// Returns how many of `times` spends are granted to this source.
fn granted(budget: &RateLimit, source: u32, times: usize, now: u64) -> usize {
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
    let spend = || budget.spend(Ipv4Addr::from_bits(source).into(), 1, now);
    (0..times).filter(|_| spend() == Spending::Granted).count()
}

#[test]
fn a_single_source_may_use_the_spare_quota() {
    let budget = RateLimit::new(100, 10);
    assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 50);
    assert_eq!(granted(&budget, ATTACKER, 1000, 1001), 10);
    assert_eq!(granted(&budget, ATTACKER, 1000, 2000), 50);
}

#[test]
fn a_greedy_source_leaves_quota_to_others() {
    let budget = RateLimit::new(100, 10);
    assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 50);
    // Two sources: each has half of the other half.
    assert_eq!(granted(&budget, 1, 1000, 1000), 25);
    let budget = RateLimit::new(100, 10);
    assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 50);
    for node in 1..=7 {
        assert_eq!(granted(&budget, node, 3, 1000), 3, "{node}");
    }
    assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 0);
    // All together never spend more than there is.
    let budget = RateLimit::new(100, 10);
    let all: usize = (0..1000).map(|source| granted(&budget, source, 1000, 1000)).sum();
    assert!((50..=100).contains(&all), "{all}");
}

#[test]
fn refuses_a_cost_above_the_total_quota() {
    let budget = RateLimit::new(100, 10);
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1000));
    let source = Ipv4Addr::LOCALHOST.into();
    assert!(matches!(budget.spend(source, u64::MAX, now), Spending::Over { tell: true, .. }));
    assert!(matches!(budget.spend(source, 101, now), Spending::Over { tell: false, .. }));
    assert_eq!(budget.spend(source, 50, now), Spending::Granted);
}

#[test]
fn rate_limit_warning_is_printed_once_a_minute() {
    let budget = RateLimit::new(0, 0);
    let spend = |now| budget.spend(Ipv4Addr::LOCALHOST.into(), 1, UnixTime::since_unix_epoch(Duration::from_secs(now)));
    assert!(matches!(spend(1000), Spending::Over { tell: true, .. }));
    assert!(matches!(spend(1059), Spending::Over { tell: false, .. }));
    assert!(matches!(spend(1060), Spending::Over { tell: true, .. }));
}

/// Returns the seconds after which a source that wants one more is to retry.
fn retry_after(budget: &RateLimit, source: u32, now: u64) -> u64 {
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
    let Spending::Over { again, .. } = budget.spend(Ipv4Addr::from_bits(source).into(), 1, now) else {
        panic!("there was one more");
    };
    again.as_secs()
}

#[test]
fn retry_after_is_the_first_second_with_quota() {
    let spent = |sources: u32| {
        let budget = RateLimit::new(100, 10);
        for source in (0..sources).map(|source| ATTACKER + source) {
            granted(&budget, source, 1000, 1000);
        }
        budget
    };
    // They have 50, 25 and 4: the part of the last one is 16, and of what is left by then nobody has more than a quarter of his.
    for (sources, asks, after) in [
        (1, ATTACKER, 1),
        (2, ATTACKER, 3),
        (2, ATTACKER + 1, 1),
        (3, ATTACKER, 3),
        (3, ATTACKER + 1, 3),
        (3, ATTACKER + 2, 1),
    ] {
        assert_eq!(retry_after(&spent(sources), asks, 1000), after, "{sources} {asks}");
        assert_eq!(granted(&spent(sources), asks, 1, 1000 + after), 1, "{sources} {asks}");
        assert_eq!(granted(&spent(sources), asks, 1, 1000 + after - 1), 0, "{sources} {asks}");
    }
    // What never comes is far away, and no division by nothing.
    assert_eq!(retry_after(&RateLimit::new(0, 0), ATTACKER, 1000), 1);
}

#[test]
fn setting_the_clock_back_refills_no_quota() {
    let budget = RateLimit::new(100, 10);
    assert_eq!(granted(&budget, ATTACKER, 1000, 100_000), 50);
    assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 0);
    assert_eq!(granted(&budget, ATTACKER, 1000, 1001), 10);
}

#[test]
fn memory_is_bounded() {
    let of_v4 = |number: u32| ClientSource::from(Ipv4Addr::from_bits(number));
    let of_one_network = |number: u32| six(number.into());
    let of_many_networks = |number: u32| six(u128::from(number) << 64);
    let of_many_sites = |number: u32| six(u128::from(number) << 80);
    let kinds: [&dyn Fn(u32) -> ClientSource; 4] = [&of_v4, &of_one_network, &of_many_networks, &of_many_sites];
    for (amount, now) in [(1, 1000), (0, 1000)] {
        let budget = RateLimit::new(1_000_000, 1);
        for kind in kinds {
            for number in 0..20_000 {
                spends(&budget, kind(number), amount, now);
            }
            let accounts = budget.state.lock().unwrap().accounts;
            // A new network may take the place of one address with three accounts.
            assert!(accounts <= 3 * 16 * 1024, "{accounts}");
        }
        let mut state = budget.state.lock().unwrap();
        assert_eq!(state.accounts, state.all.count() - 1);
        state.all.owed = 0;
        state.sweep(now + 100);
        assert_eq!((state.accounts, state.all.count()), (0, 1), "nobody owes more than all");
    }
}

#[test]
fn refills_once_a_second_despite_reordered_timestamps() {
    let budget = RateLimit::new(100, 10);
    assert_eq!(granted(&budget, ATTACKER, 1000, 1001), 50);
    for _ in 0..10 {
        assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 0);
        assert_eq!(granted(&budget, ATTACKER, 1000, 1001), 0);
    }
    assert_eq!(granted(&budget, ATTACKER, 1000, 1002), 10);
}

/// An address of 2001:db8::/32.
fn six(number: u128) -> ClientSource {
    IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8 << 96) + number)).into()
}

fn spends(budget: &RateLimit, source: ClientSource, amount: u64, now: u64) -> Spending {
    budget.spend(source, amount, UnixTime::since_unix_epoch(Duration::from_secs(now)))
}

/// Returns a tenth of the gateway's budget, of which attackers ask for 25 times as much.
fn challenges() -> RateLimit {
    RateLimit::new(CHALLENGES_AT_ONCE / 10, EACH_SECOND)
}

const EACH_SECOND: u64 = CHALLENGES_EACH_SECOND / 10;

/// Seconds at which an attack begins, and at which nodes boot during it.
const BEGIN: u64 = 1000;
const BOOT: u64 = BEGIN + 30;
/// Maximum time that a node waits in all, in seconds (`attestation.hold_seconds`).
const HOLD_SECONDS: u64 = 3600;
/// Requests of all attackers together.
const ATTACK_EACH_SECOND: usize = 2000;

/// Node that asks for a number of challenges in sequence, and retries when the budget says.
struct Node {
    source: ClientSource,
    wants: usize,
    at: u64,
}

fn nodes(sources: impl IntoIterator<Item = ClientSource>, wants: usize) -> Vec<Node> {
    let node = |source| Node { source, wants, at: BOOT };
    sources.into_iter().map(node).collect()
}

/// Returns the seconds from the boot until the last node has what it wants. In each second attackers ask in the order of `attackers`. Nodes
/// ask in between, at places from a generator that is the same each time.
fn booted_after(budget: &RateLimit, attackers: &mut dyn FnMut() -> ClientSource, mut nodes: Vec<Node>) -> u64 {
    let mut random: u64 = 7;
    for now in BEGIN..BOOT + HOLD_SECONDS {
        let mut before: Vec<(usize, usize)> = Vec::new();
        for (number, _) in nodes.iter().enumerate().filter(|(_, node)| node.wants > 0 && node.at <= now) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let place = usize::try_from(random >> 33).unwrap() % ATTACK_EACH_SECOND;
            before.push((place, number));
        }
        before.sort_unstable();
        let mut due = before.into_iter().peekable();
        for place in 0..ATTACK_EACH_SECOND {
            while let Some((_, number)) = due.next_if(|(before, _)| *before <= place) {
                let node = &mut nodes[number];
                match spends(budget, node.source, 1, now) {
                    Spending::Granted => (node.wants, node.at) = (node.wants - 1, now + 1),
                    Spending::Over { again, .. } => node.at = now + again.as_secs(),
                }
            }
            spends(budget, attackers(), 1, now);
        }
        if nodes.iter().all(|node| node.wants == 0) {
            return now - BOOT;
        }
    }
    u64::MAX
}

/// Cycles through this number of sources.
fn in_turn(sources: u128, source: impl Fn(u128) -> ClientSource) -> impl FnMut() -> ClientSource {
    let mut next = 0;
    move || {
        next = (next + 1) % sources;
        source(next)
    }
}

fn v4(number: u128) -> ClientSource {
    Ipv4Addr::from_bits(u32::try_from(number).unwrap()).into()
}

const HONEST: std::ops::Range<u128> = 1_000_000..1_000_033;

/// The network of honest nodes, their addresses by number, and numbers of greedy sources with the seconds within which the nodes boot.
type GreedyCase<'a> = (&'a str, &'a dyn Fn(u128) -> ClientSource, &'a [(u128, u64)]);

#[test]
fn attack_54_nodes_boot_despite_greedy_sources() {
    let alone = &[(1, 2), (2, 2), (10, 2), (1200, 30), (10_000, 300)][..];
    // A site's network of 48 bits has one share among all sources, which its nodes wait for within their hold.
    let shared = &[(1, 2), (2, 2), (10, 10), (1200, 600)][..];
    let kinds: [GreedyCase<'_>; 4] = [
        ("IPv4", &v4, alone),
        ("one network of 64 bits", &six, shared),
        ("networks of 64 bits in one of 48", &|number| six(number << 64), shared),
        ("networks of 48 bits", &|number| six(number << 80), &alone[..4]),
    ];
    for (of, honest, limits) in kinds {
        for &(greedy, within) in limits {
            // One challenge, and another one since the answer to the first was lost.
            let after = booted_after(&challenges(), &mut in_turn(greedy, v4), nodes(HONEST.map(honest), 2));
            assert!(after <= within, "{greedy} greedy sources, honest {of}: {after} s");
        }
    }
}

/// They are as new as the nodes are.
#[test]
fn attack_54_nodes_boot_despite_simultaneous_greedy_sources() {
    for greedy in [2, 10, 1200] {
        let budget = challenges();
        let mut ask = in_turn(greedy, v4);
        let mut asked = 0;
        let idle = v4(9_999_999);
        let mut late = || {
            asked += 1;
            if asked > (BOOT - BEGIN) * 2000 { ask() } else { idle }
        };
        let after = booted_after(&budget, &mut late, nodes(HONEST.map(v4), 2));
        assert!(after <= 30, "{greedy} greedy sources: {after} s");
    }
}

#[test]
fn attack_54_a_fleet_behind_nat_boots_despite_greedy_sources() {
    for (greedy, fleet) in [(2, 1000), (10, 1000)] {
        let honest = nodes(std::iter::repeat_n(v4(HONEST.start), fleet), 1);
        let after = booted_after(&challenges(), &mut in_turn(greedy, v4), honest);
        assert!(after < HOLD_SECONDS / 2, "{greedy} greedy sources, a fleet of {fleet}: {after} s");
    }
}

#[test]
fn constantly_requesting_sources_get_fair_shares() {
    for sources in [2, 10, 300] {
        let budget = challenges();
        let mut granted = vec![0; sources];
        for now in BEGIN..BEGIN + 120 {
            for _ in 0..2400 / sources {
                for (number, granted) in granted.iter_mut().enumerate() {
                    let got = spends(&budget, v4(number.try_into().unwrap()), 1, now) == Spending::Granted;
                    *granted += u64::from(got && now >= BEGIN + 60);
                }
            }
        }
        let fair = 60 * EACH_SECOND / u64::try_from(sources).unwrap();
        let least = granted.iter().min().unwrap();
        assert!(*least >= fair * 3 / 4, "of {fair} each the least is {least}");
        let all: u64 = granted.iter().sum();
        assert!(all >= 59 * EACH_SECOND, "nothing is left unused: {all}");
    }
}

#[test]
fn attack_55_one_greedy_neighbour_address_delays_no_boot() {
    let honest = nodes(HONEST.map(six), 2);
    let after = booted_after(&challenges(), &mut || six(66), honest);
    assert!(after <= 2, "{after} s");
}

/// A description of honest nodes, their addresses by number, and the seconds within which they boot.
type Honest<'a> = (&'a str, &'a dyn Fn(u128) -> ClientSource, u64);

#[test]
fn attack_55_many_neighbour_addresses_use_only_their_networks_share() {
    // Some thousands, or a new one each time.
    for addresses in [4000, u128::from(u64::MAX)] {
        let known = |number: u128| ClientSource::proven(IpAddr::from(Ipv6Addr::from_bits((0x2001_0db8 << 96) + number)));
        let others: [Honest<'_>; 5] = [
            ("another network of 64 bits", &|number| six((1 << 64) + number), 10),
            ("a network of 64 bits each", &|number| six(number << 64), 10),
            ("another network of 48 bits", &|number| six((1 << 80) + number), 10),
            ("known addresses of the same network", &known, 10),
            ("addresses of the same network", &six, 600),
        ];
        for (of, honest, within) in others {
            let mut neighbour = in_turn(addresses, |number| six(0x1_0000_0000 + number));
            let after = booted_after(&challenges(), &mut neighbour, nodes(HONEST.map(honest), 2));
            assert!(after <= within, "{addresses} addresses beside {of}: {after} s");
        }
    }
}

#[test]
fn unconditional_spending_reduces_the_shared_quota() {
    let budget = RateLimit::new(100, 10);
    let at = |now| UnixTime::since_unix_epoch(Duration::from_secs(now));
    budget.take(30, at(1000));
    assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 45);
    // It is had even where there is nothing left, and is made up for in no longer than all of it.
    budget.take(1000, at(1000));
    // However much of that there is, whoever owes nothing gets something.
    assert_eq!(granted(&budget, ATTACKER, 1000, 1000), 0);
    assert_eq!(granted(&budget, 1, 1, 1000), 1);
    assert_eq!(granted(&budget, ATTACKER, 1000, 1010), 50);
}
