//! The node's half of the attestation gateway: runs in the initramfs before Ignition fetches.
//!
//! A run in reading order ([`boot`]): the pointer config is found where Ignition would find it ([`ignition`], [`pointer`]), in a cloud's
//! user data, too ([`cloud`], [`user_data`]); the gateway that it names is asked for a challenge ([`gateway`]); the TPM ([`tpm`]) and the cloud answer it
//! ([`attestation`]); and the ticket that this earns is put into the pointer, which Ignition then reads. If anything fails
//! ([`failure`]), or takes too long ([`deadline`]), the pointer is unchanged, except for a header that reports the failure to the gateway, and
//! the node gets the config of an unauthenticated client. The node waits much longer for a gateway that tells it to retry ([`wait`]).
//!
//! After Ignition has its config, and on every later boot, the boot is over ([`boot_complete`]): software that runs then cannot attest to a pool
//! that accepts machines only while they boot.
//!
//! A first boot may start over, and gateways still recognise this node ([`claimant`]), until Ignition is done ([`forget`]).
//!
//! An installed system's boot entries can load this program's initrd ([`install`]).
//!
//! A running machine can rehearse its attestation, and learn what a boot would get ([`rehearsal`]).
//!
//! If the attestation or Ignition fails, the gateway gets a report with the journal, without its secrets ([`report`]).
//!
//! A node that got the pre-approved config returns for the full one when its kubelet has a certificate ([`config`]), and has Ignition apply
//! it at the next boot ([`apply`]). It uses the program that the initramfs has kept for the booted system ([`keep`]). If so configured, a
//! node attests the key that its kubelet will have, and gets the certificate for it before the kubelet requests one ([`kubelet`]).

#![deny(unreachable_pub)]

pub mod apply;
pub mod attestation;
pub mod boot;
pub mod boot_complete;
pub mod boot_id;
pub mod cloud;
pub mod codes;
pub mod config;
pub mod console;
pub mod deadline;
pub mod delivery;
pub mod disk;
pub mod ek_table;
pub mod entropy;
pub mod failure;
pub mod first_boot_secret;
pub mod forget;
pub mod gateway;
pub mod ignition;
pub mod install;
pub mod keep;
pub mod kubelet;
pub mod platform;
pub mod pointer;
pub mod rehearsal;
pub mod report;
pub mod tpm;
pub mod user_data;
pub mod wait;
