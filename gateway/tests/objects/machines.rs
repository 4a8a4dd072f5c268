//! Import of machines into a store on the API's objects, in several transactions.

use super::boots::gateway;
use super::*;
use crate::machines::import::all_or_nothing;

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_rows_are_imported_in_several_transactions() {
    let site = Site::start();
    let mut gateway = gateway(&site, "one", "");
    gateway.command(&["store", "create-key"]);
    gateway.run();
    all_or_nothing(&gateway, |transactions| (2..1000).contains(&transactions));
}
