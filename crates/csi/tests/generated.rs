//! The code in `src/csi.v1.inc` is what `proto/csi.proto` gives. With `ENKAKU_GOLDEN=write` it is
//! written anew. No protoc is needed: protox reads the file.

use std::path::Path;

#[test]
fn the_generated_code_is_that_of_the_specification() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = root.join("proto");
    let described = protox::compile([proto.join("csi.proto")], [&proto]).unwrap();
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .out_dir(out.path())
        // Connecting is the client's matter, and `Unimplemented` the answer to what we have not.
        .build_transport(false)
        .generate_default_stubs(true)
        // Secrets stand in requests: nothing may print one by accident.
        .skip_debug(WITH_SECRETS.map(|name| format!(".csi.v1.{name}")))
        .disable_comments(["."])
        .emit_rerun_if_changed(false)
        .compile_fds(described)
        .unwrap();
    let made = std::fs::read_to_string(out.path().join("csi.v1.rs")).unwrap();
    let kept = root.join("src/csi.v1.inc");
    if std::env::var("ENKAKU_GOLDEN").is_ok_and(|what| what == "write") {
        std::fs::write(&kept, &made).unwrap();
    }
    let same = std::fs::read_to_string(&kept).is_ok_and(|text| text == made);
    assert!(same, "src/csi.v1.inc is not what proto/csi.proto gives: ENKAKU_GOLDEN=write");
}

/// The messages with a field that csi.proto marks as `csi_secret`.
const WITH_SECRETS: [&str; 19] = [
    "CreateVolumeRequest",
    "DeleteVolumeRequest",
    "ControllerPublishVolumeRequest",
    "ControllerUnpublishVolumeRequest",
    "ValidateVolumeCapabilitiesRequest",
    "ControllerModifyVolumeRequest",
    "CreateSnapshotRequest",
    "DeleteSnapshotRequest",
    "ListSnapshotsRequest",
    "GetSnapshotRequest",
    "ControllerExpandVolumeRequest",
    "NodeStageVolumeRequest",
    "NodePublishVolumeRequest",
    "NodeExpandVolumeRequest",
    "CreateVolumeGroupSnapshotRequest",
    "DeleteVolumeGroupSnapshotRequest",
    "GetVolumeGroupSnapshotRequest",
    "GetMetadataAllocatedRequest",
    "GetMetadataDeltaRequest",
];
