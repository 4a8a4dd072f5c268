//! A ticket of each gateway, none of them too old when Ignition shows the last.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use attest_wire::Kind;
use attest_wire::protocol::ConfigForm;
use zeroize::Zeroizing;

use super::opened_tpm::{cloud_means, open};
use super::{BootOptions, BootResult, Surroundings};
use crate::attestation::means::Means;
use crate::attestation::{self, AttestationOutcome, AttestationTarget};
use crate::failure::Failure;
use crate::gateway::{GatewayClient, Http, Takes};
use crate::pointer::{GatewaySource, Pointer};
use crate::report::attestations::GatewayAttestation;
use crate::wait::WaitLimits;

/// Maximum age of a ticket during the wait for another gateway, before it is earned again: a fifth of the default lifetime of tickets.
const TICKET_FRESH_LIMIT: Duration = Duration::from_secs(120);
/// The part of its life that a ticket may spend in waiting: the rest is Ignition's, which asks for the configs one after the other.
const TICKET_FRESH_PART: u32 = 4;

/// Attests to each of these gateways, and puts their tickets into the pointer.
pub(super) fn attest_to_all(
    settings: &BootOptions,
    http: &Http,
    gateways: &[(&GatewaySource, Takes)],
    surroundings: &mut Surroundings,
    patience: &WaitLimits,
    pointer: &mut Pointer,
    done: &mut BootResult,
) -> Result<(), Failure> {
    let takes: BTreeSet<Kind> = gateways.iter().flat_map(|(_, takes)| takes.kinds.iter().copied()).collect();
    let Surroundings {
        first_boot_secret: claimants,
        tpm: has_tpm,
        instance,
        kubelet_key,
    } = surroundings;
    let told_key = *kubelet_key;
    let mut opened = None;
    let mut means = Means {
        name: settings.name.clone(),
        ..Means::default()
    };
    // On a cloud, one of two may be out of order: the pool says whether the other is enough.
    let mut missing = Vec::new();
    if takes.contains(&Kind::Tpm) && has_tpm.is_ok() {
        // Where there is a cloud, too, it has its time even if the TPM is busy until the end of its own.
        let deadline = patience.work().share(if instance.is_some() { 2 } else { 1 });
        let tpm = open(settings, deadline).and_then(|tpm| opened.insert(tpm).means(settings));
        match tpm {
            Ok((tpm, notes)) => {
                done.notes.extend(notes);
                means.tpm = Some(tpm);
            }
            Err(error) => missing.push(Failure::from(error)),
        }
    }
    if let Some(instance) = instance {
        match cloud_means(settings, instance, &takes, has_tpm.is_ok(), claimants, patience.work()) {
            Ok(found) => {
                means.cloud = found.means;
                let new = found
                    .notes
                    .into_iter()
                    .filter(|note| !done.notes.contains(note))
                    .collect::<Vec<_>>();
                done.notes.extend(new);
            }
            Err(failure) => missing.push(failure),
        }
    }
    let nothing = means.tpm.is_none() && means.cloud.is_none();
    let failed = (nothing && !missing.is_empty()).then(|| missing.remove(0));
    done.notes
        .extend(missing.iter().map(|failure| format!("evidence left out: {failure}")));
    if let Some(failed) = failed {
        return Err(failed);
    }
    let tokens: Vec<_> = gateways.iter().map(|(source, _)| pointer.token(source.place)).collect();
    let formats: Vec<_> = gateways.iter().map(|(source, _)| pointer.config_formats(source.place)).collect();
    let gateways: Vec<_> = gateways.iter().zip(tokens.iter().zip(&formats)).collect();
    // Beside the pointer, until the last one is there: one that is earned again, or is too old by then, leaves nothing of itself.
    let mut earned: BTreeMap<usize, EarnedTicket> = BTreeMap::new();
    let mut round: Vec<usize> = (0..gateways.len()).collect();
    // Each round but the first follows one in which a gateway has held this node, or minutes have passed, so their number is bounded as
    // its patience is.
    while !round.is_empty() {
        let (mut left, held) = (round.len(), patience.times());
        for (index, ((source, takes), (token, formats))) in gateways.iter().enumerate().filter(|(index, _)| round.contains(index)) {
            let share = patience.work().share(left);
            left -= 1;
            patience.answered(Instant::now());
            let target = AttestationTarget {
                gateway: &GatewayClient::patiently(http, source, share, patience).with_token(token.is_some()),
                takes: &takes.kinds,
                pool: &source.pool,
                kubelet_key: told_key.filter(|_| takes.kubelet_key),
                token: token.as_ref(),
                formats,
            };
            match (attestation::attest(target, &mut means), earned.get_mut(&index)) {
                (Ok(attested), _) => {
                    // Where nothing of it is signed, the key is nobody's word.
                    let has_key = target.kubelet_key.is_some() && attested.kinds.iter().any(|kind| kind.signs_purpose());
                    let with_key = if has_key { ", with a key for its kubelet" } else { "" };
                    done.attested_key |= has_key;
                    done.reports.push(GatewayAttestation {
                        base: source.base.clone(),
                        pool: source.pool.clone(),
                        proof: attested.report.as_ref().map(|proof| proof.reveal().to_owned()),
                        decision: None,
                    });
                    let line = format!("{attested} to {} for pool {}{with_key}", source.base, source.pool);
                    earned.insert(index, EarnedTicket::new(attested, line));
                }
                (Err(failure), Some(before)) => before.not_again = Some(failure),
                (Err(failure), None) => {
                    let refusal = failure.refusal.as_deref();
                    done.reports.push(GatewayAttestation::refused(&source.base, &source.pool, refusal));
                    done.fail(source.place, failure, patience);
                }
            }
        }
        round.clear();
        let stale = |earned: &EarnedTicket| earned.not_again.is_none() && earned.is_stale(patience.times() > held);
        round.extend(earned.iter().filter(|(_, earned)| stale(earned)).map(|(index, _)| *index));
    }
    for (((source, _), _), earned) in earned
        .into_iter()
        .filter_map(|(index, earned)| Some((gateways.get(index)?, earned)))
    {
        match earned.not_again {
            Some(failure) if !earned.is_good() => done.fail(source.place, failure, patience),
            failure => {
                let kept = |failure| format!("{}: keeping the ticket of an earlier attestation: {failure}", source.base);
                done.notes.extend(failure.map(kept));
                pointer.set_ticket(source.place, &earned.ticket, earned.config.as_ref());
                done.attested.push(earned.line);
            }
        }
    }
    Ok(())
}

/// A ticket that is not in the pointer yet. A secret, so there is no `Debug`.
struct EarnedTicket {
    ticket: Zeroizing<String>,
    at: Instant,
    lasts: Option<Duration>,
    config: Option<ConfigForm>,
    /// Message about the attestation.
    line: String,
    /// Reason why it could not be earned again. The ticket's validity is unchanged.
    not_again: Option<Failure>,
}

impl EarnedTicket {
    fn new(attested: AttestationOutcome, line: String) -> Self {
        Self {
            ticket: attested.ticket,
            at: Instant::now(),
            lasts: attested.lasts,
            config: attested.config,
            line,
            not_again: None,
        }
    }

    /// Returns whether the ticket must be earned again, after a round in which this node was `held` or not.
    fn is_stale(&self, held: bool) -> bool {
        let part = self.lasts.map(|lasts| lasts / TICKET_FRESH_PART).filter(|_| held);
        self.at.elapsed() > part.map_or(TICKET_FRESH_LIMIT, |part| part.min(TICKET_FRESH_LIMIT))
    }

    /// Returns whether the gateway certainly still accepts the ticket.
    fn is_good(&self) -> bool {
        self.lasts.is_some_and(|lasts| self.at.elapsed() < lasts)
    }
}
