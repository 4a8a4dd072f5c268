//! Provisioning tokens, for machines that cannot attest: 32 random bytes, shown once, kept only as a hash.
//!
//! ```text
//! Draft → create ─┐
//!                 ├→ current → redeem → Redeemed
//! rotate ─────────┘     │ rotate
//!                    previous, until its grace period ends
//! ```
//!
//! A token that rotates by itself is also published: written into a folder, from where it gets into pointers and the cluster.

mod bootstrap;
mod holder;
mod import;
mod issue;
mod publication;
mod published;
mod record;
mod redeem;
mod rotate;
mod schedule;
mod secret;

pub use holder::{AGAIN_SECONDS, Claimant, REPEATS_LIMIT, TokenHolder};
pub use import::{ImportError, Imported};
pub use issue::{Created, Draft, IssueError, create, current, forget_expired, free_name, import, list, revoke, shown_name, withdraw};
pub use publication::{PublishError, Secret, auth_secret};
pub use published::{BootstrapToken, FollowError, PublishedToken, TokenStep, follow, is_followed};
pub use record::{Rotation, Superseded, TokenRecord, TokenState};
pub use redeem::{PresentedToken, RedeemedToken, TokenError, look_up, open};
pub use rotate::{RotateOptions, Rotated, rotate};
pub use schedule::{RotationResult, tick};

/// Default grace period of a rotated token, in seconds. It is long enough for nodes that are booting, and for a pointer to be replaced on a
/// working day.
pub const GRACE_SECONDS: u64 = 24 * 3600;

#[cfg(test)]
mod tests;
