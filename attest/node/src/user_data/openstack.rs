//! OpenStack's metadata service, by IPv4.

use crate::cloud::metadata::Ask;
use crate::cloud::{MetadataAddress, MetadataClient};
use crate::pointer::POINTER_LIMIT_BYTES;

use super::first_answer::UserDataSource;

/// Path of the user data.
const USER_DATA: &str = "/openstack/latest/user_data";

/// Returns the metadata service as a source. A service without user data (404) answers that there is none.
pub(super) fn metadata_service(address: MetadataAddress) -> UserDataSource {
    Box::new(move |wait| {
        let metadata = MetadataClient::new(&address)?;
        let answer = metadata.ask_for_optional(Ask::get(USER_DATA, &[], POINTER_LIMIT_BYTES), wait.deadline)?;
        Ok(answer.map(|answer| answer.body))
    })
}
