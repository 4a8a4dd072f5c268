//! The parts that ask the cluster's API, and what each may do there: one list, which roles and documents are made from or held against.

use super::attested_nodes;

/// What the gateway can do with the cluster's API. Each is off unless it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Part {
    /// Say when configs have to be fetched again.
    Configs,
    /// Accept instances that Machines name.
    Inventory,
    /// Take bootstrap tokens as provisioning tokens.
    Tokens,
    /// Be told which CAs sign the client certificates of kubelets.
    ClientCa,
    /// Show the Machine Config Server's certificate, and be told of it.
    McsCertificate,
    /// Make the kubelets' bootstrap kubeconfig of what the cluster has.
    BootstrapKubeconfig,
    /// Give the pointers of machine sets the CAs that pointers carry now.
    Pointers,
    /// Approve the CSRs of kubelets whose machines have attested.
    Approval,
    /// Make the MachineConfigs that hand a node over to machine-config-daemon.
    SecondStage,
    /// Keep the store on objects of the API.
    Store,
    /// Show the machines as objects, and take edits of them.
    AttestedNodes,
}

/// Where something may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Cluster,
    /// The namespace of the gateway's own objects.
    Own,
    Namespace(&'static str),
}

/// What may be done with some resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    pub place: Place,
    pub group: &'static str,
    /// With their subresource, such as `certificatesigningrequests/approval`.
    pub resources: &'static [&'static str],
    /// These objects only; empty: all. A creation names none; a list or a watch does only if its field selector is `metadata.name=…`.
    pub names: &'static [&'static str],
    pub verbs: &'static [&'static str],
}

const MACHINE_CONFIGURATION: &str = "machineconfiguration.openshift.io";
const CERTIFICATES: &str = "certificates.k8s.io";
/// Where all Machines of OpenShift are, and what new ones are made from.
const MACHINES: Place = Place::Namespace("openshift-machine-api");
/// What a watch of kube needs.
const WATCH: &[&str] = &["list", "watch"];

const fn cluster(group: &'static str, resources: &'static [&'static str], verbs: &'static [&'static str]) -> Rule {
    Rule {
        place: Place::Cluster,
        group,
        resources,
        names: &[],
        verbs,
    }
}

const fn within(place: Place, resources: &'static [&'static str], verbs: &'static [&'static str]) -> Rule {
    Rule {
        place,
        ..cluster("", resources, verbs)
    }
}

const CONFIGS: &[Rule] = &[
    cluster(
        MACHINE_CONFIGURATION,
        &["controllerconfigs", "machineconfigpools", "machineosbuilds", "machineosconfigs"],
        WATCH,
    ),
    cluster(MACHINE_CONFIGURATION, &["machineconfigs"], &["get", "list", "watch"]),
];

const INVENTORY: &[Rule] = &[
    Rule {
        place: MACHINES,
        ..cluster("machine.openshift.io", &["machines"], WATCH)
    },
    cluster("", &["nodes"], WATCH),
];

/// Their names begin alike, and RBAC knows no patterns: whoever may list them reads every Secret there.
const TOKENS: &[Rule] = &[within(Place::Namespace("kube-system"), &["secrets"], WATCH)];

/// A list or a watch of one object by its name is held to the names of a rule, if the request says it so.
const CLIENT_CA: &[Rule] = &[Rule {
    names: &["csr-controller-ca"],
    ..within(Place::Namespace("openshift-config-managed"), &["configmaps"], WATCH)
}];

/// The operator's own: the Machine Config Server's objects.
const OPERATOR: Place = Place::Namespace("openshift-machine-config-operator");

/// Its key is in that Secret: who may read it can pose as the Machine Config Server, as the gateway does.
const MCS_CERTIFICATE: &[Rule] = &[
    Rule {
        names: &["machine-config-server-tls"],
        ..within(OPERATOR, &["secrets"], WATCH)
    },
    Rule {
        names: &["machine-config-server-ca"],
        ..within(OPERATOR, &["configmaps"], WATCH)
    },
    Rule {
        // Where the operator does not rotate.
        names: &["root-ca"],
        ..within(Place::Namespace("kube-system"), &["configmaps"], WATCH)
    },
];

const BOOTSTRAP_KUBECONFIG: &[Rule] = &[
    Rule {
        names: &["node-bootstrapper-token"],
        ..within(OPERATOR, &["secrets"], WATCH)
    },
    Rule {
        // The operator's own copy of it can be changed by each node.
        names: &["kube-apiserver-server-ca"],
        ..within(Place::Namespace("openshift-config-managed"), &["configmaps"], WATCH)
    },
    Rule {
        names: &["cluster"],
        ..cluster("config.openshift.io", &["infrastructures"], WATCH)
    },
];

const POINTERS: &[Rule] = &[
    Rule {
        place: MACHINES,
        ..cluster("machine.openshift.io", &["controlplanemachinesets", "machinesets"], &["list"])
    },
    Rule {
        // As an installer calls them.
        names: &["master-user-data", "worker-user-data"],
        ..within(MACHINES, &["secrets"], &["get", "patch"])
    },
    Rule {
        // What an installer gives bare metal. The Machine Config Operator writes them itself: they are looked at only.
        names: &["master-user-data-managed", "worker-user-data-managed"],
        ..within(MACHINES, &["secrets"], &["get"])
    },
];

const APPROVAL: &[Rule] = &[
    // Watched trimmed, and read whole before it is approved.
    cluster(CERTIFICATES, &["certificatesigningrequests"], &["get", "list", "watch"]),
    cluster(CERTIFICATES, &["certificatesigningrequests/approval"], &["update"]),
    Rule {
        // Without them the API's admission refuses the approval of a CSR for that signer.
        names: &["kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"],
        ..cluster(CERTIFICATES, &["signers"], &["approve"])
    },
    Rule {
        place: MACHINES,
        ..cluster("machine.openshift.io", &["machines"], WATCH)
    },
    cluster("", &["nodes"], &["get", "list", "watch"]),
    // Serving certificates are for the egress addresses of a node, too.
    cluster("k8s.ovn.org", &["egressips"], &["list"]),
    // A CSR is in no namespace; the events of what is in none are in this one.
    within(Place::Namespace("default"), &["events"], &["create"]),
];

const SECOND_STAGE: &[Rule] = &[
    cluster(
        MACHINE_CONFIGURATION,
        &["machineconfigs"],
        &["create", "delete", "get", "list", "update"],
    ),
    cluster(MACHINE_CONFIGURATION, &["machineconfigpools"], &["get"]),
    cluster("", &["nodes"], &["list"]),
];

/// The gateway's account can read every Secret there by that: those that are there are the gateway's own.
const STORE: &[Rule] = &[within(Place::Own, &["secrets"], &["create", "delete", "get", "list", "patch"])];

const ATTESTED_NODES: &[Rule] = &[
    cluster(
        attested_nodes::GROUP,
        &[attested_nodes::PLURAL],
        // Their labels are patched: by these they are found.
        &["create", "get", "list", "patch", "watch"],
    ),
    cluster(attested_nodes::GROUP, &["attestednodes/status"], &["patch"]),
    // The objects are in no namespace; the events of what is in none are in this one.
    within(Place::Namespace("default"), &["events"], &["create"]),
];

impl Part {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Configs,
        Self::Inventory,
        Self::Tokens,
        Self::ClientCa,
        Self::McsCertificate,
        Self::BootstrapKubeconfig,
        Self::Pointers,
        Self::Approval,
        Self::SecondStage,
        Self::Store,
        Self::AttestedNodes,
    ];

    /// As it is asked for, and as its roles are called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configs => "configs",
            Self::Inventory => "inventory",
            Self::Tokens => "tokens",
            Self::ClientCa => "client-ca",
            Self::McsCertificate => "mcs-certificate",
            Self::BootstrapKubeconfig => "bootstrap-kubeconfig",
            Self::Pointers => "pointers",
            Self::Approval => "approval",
            Self::SecondStage => "second-stage",
            Self::Store => "store",
            Self::AttestedNodes => "attested-nodes",
        }
    }

    /// What it is for.
    #[must_use]
    pub const fn purpose(self) -> &'static str {
        match self {
            Self::Configs => "Says when configs have to be fetched again",
            Self::Inventory => "Accepts instances that Machines name",
            Self::Tokens => "Takes bootstrap tokens of Kubernetes as provisioning tokens",
            Self::ClientCa => "Is told which CAs sign the client certificates of kubelets",
            Self::McsCertificate => "Shows the Machine Config Server's certificate, and takes a new one as the operator makes it",
            Self::BootstrapKubeconfig => "Makes the kubelets' bootstrap kubeconfig of what the cluster has",
            Self::Pointers => "Gives the pointers of machine sets the CAs that pointers carry now",
            Self::Approval => "Approves the CSRs of kubelets whose machines have attested",
            Self::SecondStage => "Makes the MachineConfigs that hand a node over to machine-config-daemon",
            Self::Store => "Keeps the store on objects of the API",
            Self::AttestedNodes => "Shows the machines as objects, and takes edits of them",
        }
    }

    /// What it may do, and nothing else.
    #[must_use]
    pub const fn rules(self) -> &'static [Rule] {
        match self {
            Self::Configs => CONFIGS,
            Self::Inventory => INVENTORY,
            Self::Tokens => TOKENS,
            Self::ClientCa => CLIENT_CA,
            Self::McsCertificate => MCS_CERTIFICATE,
            Self::BootstrapKubeconfig => BOOTSTRAP_KUBECONFIG,
            Self::Pointers => POINTERS,
            Self::Approval => APPROVAL,
            Self::SecondStage => SECOND_STAGE,
            Self::Store => STORE,
            Self::AttestedNodes => ATTESTED_NODES,
        }
    }
}
