//! Disks, partitions, RAID arrays, encrypted devices and filesystems.

use std::collections::HashSet;

use super::at::At;
use super::{Invalid, path, sources};

/// GPT: 36 UTF-16 code units. Ignition counts bytes.
const PARTITION_LABEL_MAX_BYTES: usize = 36;
/// LUKS2: 48, with the terminating zero.
const LUKS_LABEL_MAX_BYTES: usize = 47;
/// The filesystems that Ignition creates, and the longest label of each; `none` only erases.
const FORMATS: [(&str, usize); 6] = [
    ("ext4", 16),
    ("btrfs", 256),
    ("xfs", 12),
    ("swap", 15),
    ("vfat", 11),
    ("none", usize::MAX),
];
/// The digits of a GUID's groups.
const GUID_GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

pub(super) fn check(storage: &At<'_>) -> Result<(), Invalid> {
    storage.each("disks").try_for_each(|entry| disk(&entry))?;
    storage.each("raid").try_for_each(|entry| raid(&entry))?;
    storage.each("luks").try_for_each(|entry| luks(&entry))?;
    storage.each("filesystems").try_for_each(|entry| filesystem(&entry))
}

fn disk(disk: &At<'_>) -> Result<(), Invalid> {
    path(&disk.get("device"))?;
    let (mut numbers, mut labels) = (HashSet::new(), HashSet::new());
    let mut placed = Vec::new();
    for part in disk.each("partitions") {
        partition(&part)?;
        // 0 is the next free number.
        if let Some(number) = part.get("number").number().filter(|number| *number != 0) {
            part.get("number").must(numbers.insert(number), "a number of its own is expected")?;
        }
        if let Some(label) = part.get("label").text() {
            part.get("label").must(labels.insert(label), "a label of its own is expected")?;
        }
        // A start of 0 is wherever there is room, a size of 0 as far as there is.
        if let (Some(start), Some(size)) = (part.get("startMiB").number(), part.get("sizeMiB").number())
            && start != 0
        {
            placed.push((start, start.saturating_add(size.saturating_sub(1).max(0)), part));
        }
    }
    placed.sort_by_key(|(start, _, _)| *start);
    let mut taken_to = None;
    for (start, end, part) in placed {
        part.must(
            taken_to.is_none_or(|taken_to| taken_to < start),
            "a position that overlaps no other partition is expected",
        )?;
        taken_to = Some(end.max(taken_to.unwrap_or(end)));
    }
    Ok(())
}

fn partition(partition: &At<'_>) -> Result<(), Invalid> {
    let label = partition.get("label");
    if partition.get("shouldExist").is(false) {
        let describes = ["label", "startMiB", "sizeMiB"].iter().any(|field| partition.get(field).is_set())
            || ["typeGuid", "guid"].iter().any(|field| partition.get(field).says());
        partition.must(
            !describes,
            "of a partition that should not exist, nothing but its number is expected",
        )?;
    }
    let numbered = partition.get("number").number().is_some_and(|number| number != 0);
    partition.must(numbered || label.is_set(), "a number or a label is expected")?;
    label.must(
        label.text_or_empty().len() <= PARTITION_LABEL_MAX_BYTES,
        "at most 36 bytes are expected",
    )?;
    label.must(!label.text_or_empty().contains(':'), "a label without a colon is expected")?;
    for field in ["guid", "typeGuid"] {
        let guid = partition.get(field);
        guid.must(
            !guid.says() || is_guid(guid.text_or_empty()),
            "a GUID is expected, as 01234567-89AB-CDEF-EDCB-A98765432101 is",
        )?;
    }
    Ok(())
}

fn is_guid(text: &str) -> bool {
    text.split('-').map(str::len).eq(GUID_GROUPS) && text.bytes().all(|c| c == b'-' || c.is_ascii_hexdigit())
}

fn raid(raid: &At<'_>) -> Result<(), Invalid> {
    let (level, spares) = (raid.get("level"), raid.get("spares"));
    match level.text_or_empty() {
        "linear" | "raid0" | "0" | "stripe" => {
            spares.must(
                spares.number().is_none_or(|spares| spares == 0),
                "no spares are expected at this level",
            )?;
        }
        "raid1" | "1" | "mirror" | "raid4" | "4" | "raid5" | "5" | "raid6" | "6" | "raid10" | "10" => {}
        _ => return Err(level.refuse("linear, raid0, raid1, raid4, raid5, raid6 or raid10 is expected")),
    }
    raid.get("devices")
        .must(raid.each("devices").next().is_some(), "devices are expected")?;
    raid.each("devices").try_for_each(|device| path(&device))
}

fn filesystem(filesystem: &At<'_>) -> Result<(), Invalid> {
    let (format, label) = (filesystem.get("format"), filesystem.get("label"));
    path(&filesystem.get("device"))?;
    if filesystem.get("path").says() {
        path(&filesystem.get("path"))?;
    }
    if format.says() {
        let known = FORMATS.iter().find(|(name, _)| *name == format.text_or_empty());
        format.must(known.is_some(), "ext4, btrfs, xfs, swap, vfat or none is expected")?;
        let longest = known.map_or(usize::MAX, |(_, longest)| *longest);
        return label.must(
            label.text_or_empty().len() <= longest,
            "a label that this format has room for is expected",
        );
    }
    let says_more = ["path", "label", "uuid"].iter().any(|field| filesystem.get(field).says())
        || filesystem.get("wipeFilesystem").is(true)
        || ["options", "mountOptions"]
            .iter()
            .any(|field| filesystem.each(field).next().is_some());
    format.must(!says_more, "a format is expected")
}

fn luks(luks: &At<'_>) -> Result<(), Invalid> {
    let (name, label) = (luks.get("name"), luks.get("label"));
    let (clevis, cex) = (luks.get("clevis"), luks.get("cex"));
    name.must(!name.text_or_empty().contains('/'), "a name without a slash is expected")?;
    label.must(label.text_or_empty().len() <= LUKS_LABEL_MAX_BYTES, "at most 47 bytes are expected")?;
    path(&luks.get("device"))?;
    sources::resource(&luks.get("keyFile"))?;

    let custom = clevis.get("custom");
    let (pin, config) = (custom.get("pin"), custom.get("config"));
    if pin.says() || config.says() || custom.get("needsNetwork").is(true) {
        pin.must(pin.says(), "the pin is expected")?;
        config.must(config.says(), "the pin's config is expected")?;
    }
    let threshold = clevis.get("threshold").number().is_some_and(|threshold| threshold != 0);
    let standard = clevis.each("tang").next().is_some() || clevis.get("tpm2").is(true) || threshold;
    clevis.must(
        !(pin.says() && standard),
        "custom is expected alone, without tang, tpm2 and threshold",
    )?;
    clevis.each("tang").try_for_each(|server| tang(&server))?;
    if cex.get("enabled").is(true) {
        cex.must(!pin.says() && !standard, "cex is expected without clevis")?;
        cex.must(!luks.get("keyFile").get("source").says(), "cex is expected without a key file")?;
    }
    Ok(())
}

fn tang(tang: &At<'_>) -> Result<(), Invalid> {
    let (url, thumbprint, advertisement) = (tang.get("url"), tang.get("thumbprint"), tang.get("advertisement"));
    url.must(sources::is_http(url.text_or_empty()), "a URL with http or https is expected")?;
    thumbprint.must(thumbprint.says(), "the server's thumbprint is expected")?;
    let parsed = serde_json::from_str::<serde::de::IgnoredAny>(advertisement.text_or_empty());
    advertisement.must(!advertisement.says() || parsed.is_ok(), "JSON is expected")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{refused, taken};

    fn storage(list: &str, entries: &Value) -> Value {
        json!({"storage": {list: entries}})
    }

    #[track_caller]
    fn good(list: &str, entry: Value) {
        taken(storage(list, &json!([entry])));
    }

    /// Asserts an error at the field of the entry.
    #[track_caller]
    fn bad(list: &str, field: &str, entry: Value) {
        let place = format!("storage.{list}.0{}{field}", if field.is_empty() { "" } else { "." });
        refused(storage(list, &json!([entry])), &place);
    }

    #[test]
    fn validates_disks() {
        let disk = |partitions: Value| json!({"device": "/d", "partitions": partitions});
        good("disks", json!({"device": "/d", "wipeTable": true}));
        bad("disks", "device", json!({"device": ""}));
        bad("disks", "device", json!({"device": "d"}));
        good("disks", disk(json!([{"number": 1}, {"number": 2, "label": "a"}, {"label": "b"}])));
        bad("disks", "partitions.1", disk(json!([{"number": 1}, {"number": 1}])));
        bad(
            "disks",
            "partitions.1.label",
            disk(json!([{"number": 1, "label": "a"}, {"number": 2, "label": "a"}])),
        );
        let placed = |a: [i64; 2], b: [i64; 2]| {
            disk(json!([{"number": 1, "startMiB": a[0], "sizeMiB": a[1]}, {"number": 2, "startMiB": b[0], "sizeMiB": b[1]}]))
        };
        good("disks", placed([1, 10], [11, 10]));
        good("disks", placed([11, 0], [1, 10]));
        good("disks", placed([0, 10], [0, 10]));
        bad("disks", "partitions.1", placed([1, 10], [10, 10]));
        bad("disks", "partitions.0", placed([10, 10], [1, 10]));
        bad("disks", "partitions.1", placed([1, 10], [5, 0]));
        bad("disks", "partitions.1", placed([5, i64::MAX], [6, i64::MIN]));
    }

    #[test]
    fn validates_partitions() {
        let bad = |field: &str, part: Value| {
            let place = format!("partitions.0{}{field}", if field.is_empty() { "" } else { "." });
            bad("disks", &place, json!({"device": "/d", "partitions": [part]}));
        };
        let good = |part: Value| good("disks", json!({"device": "/d", "partitions": [part]}));
        good(json!({"number": 1, "shouldExist": false, "guid": ""}));
        bad("", json!({"number": 1, "shouldExist": false, "label": "a"}));
        bad("", json!({"number": 1, "shouldExist": false, "sizeMiB": 0}));
        bad("", json!({"number": 0}));
        bad("", json!({"sizeMiB": 1}));
        good(json!({"label": "a".repeat(36)}));
        bad("label", json!({"label": "a".repeat(37)}));
        bad("label", json!({"label": "a:b"}));
        good(json!({"number": 1, "guid": "01234567-89AB-cdef-EDCB-A98765432101"}));
        bad("guid", json!({"number": 1, "guid": "01234567-89AB-CDEF-EDCB-A9876543210"}));
        bad("typeGuid", json!({"number": 1, "typeGuid": "g1234567-89AB-CDEF-EDCB-A98765432101"}));
    }

    #[test]
    fn validates_raid() {
        let raid = |level: &str, spares: i64| json!({"name": "a", "level": level, "devices": ["/a"], "spares": spares});
        good("raid", raid("raid1", 1));
        good("raid", raid("0", 0));
        bad("raid", "spares", raid("stripe", 1));
        bad("raid", "level", raid("raid7", 0));
        bad("raid", "level", json!({"name": "a", "devices": ["/a"]}));
        bad("raid", "devices", json!({"name": "a", "level": "raid1"}));
        bad("raid", "devices.1", json!({"name": "a", "level": "raid1", "devices": ["/a", "b"]}));
        bad("raid", "devices.1", json!({"name": "a", "level": "raid1", "devices": ["/a", "/a"]}));
    }

    #[test]
    fn validates_filesystems() {
        for (format, longest) in [("ext4", 16), ("btrfs", 256), ("xfs", 12), ("swap", 15), ("vfat", 11)] {
            good(
                "filesystems",
                json!({"device": "/d", "format": format, "label": "a".repeat(longest)}),
            );
            bad(
                "filesystems",
                "label",
                json!({"device": "/d", "format": format, "label": "a".repeat(longest + 1)}),
            );
        }
        good("filesystems", json!({"device": "/d", "format": "none"}));
        good("filesystems", json!({"device": "/d", "path": "", "wipeFilesystem": false}));
        bad("filesystems", "format", json!({"device": "/d", "format": "zfs"}));
        for field in ["path", "label", "uuid"] {
            bad("filesystems", "format", json!({"device": "/d", field: "/a"}));
        }
        bad("filesystems", "format", json!({"device": "/d", "wipeFilesystem": true}));
        bad("filesystems", "format", json!({"device": "/d", "options": ["a"]}));
        bad("filesystems", "format", json!({"device": "/d", "mountOptions": ["a"]}));
        bad("filesystems", "path", json!({"device": "/d", "format": "xfs", "path": "a"}));
        bad("filesystems", "device", json!({"device": "", "format": "xfs"}));
    }

    #[test]
    fn validates_luks() {
        let luks = |field: &str, value: Value| json!({"name": "a", "device": "/d", field: value});
        good("luks", luks("label", json!("a".repeat(47))));
        bad("luks", "label", luks("label", json!("a".repeat(48))));
        bad("luks", "name", luks("name", json!("a/b")));
        bad("luks", "device", luks("device", json!("")));
        bad("luks", "keyFile.source", luks("keyFile", json!({"source": "a"})));
        bad("luks", "openOptions.1", luks("openOptions", json!(["a", "a"])));
        good("luks", luks("options", json!(["a", "a"])));
        good("luks", luks("cex", json!({"enabled": true})));
        let mut both = luks("cex", json!({"enabled": true}));
        both["clevis"] = json!({"tpm2": true});
        bad("luks", "cex", both);
        let mut both = luks("cex", json!({"enabled": true}));
        both["keyFile"] = json!({"source": "data:,a"});
        bad("luks", "cex", both);
    }

    #[test]
    fn validates_clevis() {
        let clevis = |clevis: Value| json!({"name": "a", "device": "/d", "clevis": clevis});
        let tang = |url: &str, thumbprint: &str| json!({"url": url, "thumbprint": thumbprint});
        good(
            "luks",
            clevis(json!({"tpm2": true, "tang": [tang("http://a", "b")], "threshold": 2})),
        );
        good(
            "luks",
            clevis(json!({"custom": {"pin": "x", "config": "{}", "needsNetwork": true}, "threshold": 0})),
        );
        good("luks", clevis(json!({"custom": {"pin": "", "needsNetwork": false}})));
        bad(
            "luks",
            "clevis",
            clevis(json!({"custom": {"pin": "x", "config": "{}"}, "tpm2": true})),
        );
        bad(
            "luks",
            "clevis",
            clevis(json!({"custom": {"pin": "x", "config": "{}"}, "threshold": 1})),
        );
        bad("luks", "clevis.custom.pin", clevis(json!({"custom": {"config": "{}"}})));
        bad("luks", "clevis.custom.pin", clevis(json!({"custom": {"needsNetwork": true}})));
        bad("luks", "clevis.custom.config", clevis(json!({"custom": {"pin": "x"}})));
        bad("luks", "clevis.tang.0.url", clevis(json!({"tang": [tang("a", "b")]})));
        bad("luks", "clevis.tang.0.thumbprint", clevis(json!({"tang": [tang("http://a", "")]})));
        bad(
            "luks",
            "clevis.tang.1",
            clevis(json!({"tang": [tang("http://a", "b"), tang("http://a", "c")]})),
        );
        let advertised = |text: &str| clevis(json!({"tang": [{"url": "http://a", "thumbprint": "b", "advertisement": text}]}));
        good("luks", advertised("{}"));
        bad("luks", "clevis.tang.0.advertisement", advertised("{"));
    }
}
