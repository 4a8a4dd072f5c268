#!/bin/bash
# dracut module: attest-node, in front of Ignition's fetch stage.
#
# Copy this folder to /usr/lib/dracut/modules.d/ and the binary to /usr/bin/attest-node, then run dracut.

check() {
    require_binaries attest-node || return 1
    # Wherever Ignition is, and nowhere else. The number is the distribution's: Flatcar has another.
    local module
    for module in "$dracutbasedir"/modules.d/[0-9][0-9]ignition; do
        [[ -d $module ]] && return 0
    done
    return 255
}

depends() {
    # The network comes with Ignition: by dracut's module of that name, or by Flatcar's own, beside which there must be no other.
    echo ignition systemd
}

installkernel() {
    # Not only this machine's TPM: an image is built on one machine and boots on others.
    hostonly='' instmods '=drivers/char/tpm' tpm_crb tpm_tis qemu_fw_cfg
    # The network of clouds' machines: Google's, Amazon's and Azure's drivers. The metadata server is behind it.
    hostonly='' instmods virtio_net gve ena ixgbevf xen-netfront hv_netvsc mana mlx4_en mlx5_core
    # Azure's custom data is on a CD.
    hostonly='' instmods hv_storvsc ata_piix sr_mod udf
    # Config drives are CDs or disks, with ISO 9660 or FAT (below).
    hostonly='' instmods ahci virtio_blk virtio_scsi ibmvscsi xen-blkfront isofs
    # The filesystems on which a secret is kept for a reboot of the first boot: boot partitions, and EFI system partitions.
    hostonly='' instmods ext4 vfat nls_cp437 nls_iso8859-1 nls_ascii nls_utf8
}

install_unit() {
    local unit=$1 target=$2 instance=${3:-$1}
    inst_simple "$moddir/$unit" "$systemdsystemunitdir/$unit"
    mkdir -p "$initdir/$systemdsystemunitdir/$target.wants"
    ln_r "$systemdsystemunitdir/$unit" "$systemdsystemunitdir/$target.wants/$instance"
}

install() {
    inst_binary "$(command -v attest-node)" /usr/bin/attest-node
    inst_multiple modprobe systemctl journalctl mount umount udevadm sh sleep
    # AWS's program that asks a NitroTPM for its attestation document, if this machine has it.
    inst_multiple -o nitro-tpm-attest

    # Loaded with dlopen, so that dracut cannot find it by itself. The rest of the TPM stack is linked.
    inst_libdir_file 'libtss2-tcti-device.so*'

    # On first boots, and at each boot.
    install_unit attest-node.service ignition-complete.target
    install_unit attest-node-forget.service ignition-complete.target
    install_unit attest-node-keep.service initrd.target
    # When Ignition has its config; at once on boots that are no first ones, and before somebody gets a shell.
    install_unit attest-node-close.service initrd.target
    local target
    for target in ignition-subsequent.target emergency.service rescue.service dracut-emergency.service; do
        install_unit attest-node-close-now.service "$target"
    done
    # Before the shell of a boot that has failed; attest-node.service starts another instance.
    for target in emergency.service dracut-emergency.service; do
        install_unit attest-node-report@.service "$target" attest-node-report@boot.service
    done
    # Since systemd 255 one unit resumes from hibernation, before that an instance for each device.
    local resume
    for resume in systemd-hibernate-resume.service systemd-hibernate-resume@.service; do
        inst_simple "$moddir/attest-node-resume.conf" "$systemdsystemunitdir/$resume.d/attest-node.conf"
    done
}
