//! OpenStack's own clients, unmodified, against the binary: the `openstack` command line with its
//! load-balancer plug-in, and openstacksdk.
//!
//! Beside them, gophercloud, which Terraform uses: [`gophercloud`].
//!
//! `CCM_OPENSTACK_CLIENT` names the command; `cargo xtask test --full` installs it. Without it the
//! cases are ignored.

mod cloud;
mod driver;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

pub(crate) use self::cloud::Cloud;

/// Names the command.
const VARIABLE: &str = "CCM_OPENSTACK_CLIENT";

/// What a case does.
pub(crate) type Test = fn(&Cloud) -> anyhow::Result<()>;

/// All cases.
pub(crate) const TESTS: [(&str, Test); 9] = [
    ("identity", identity),
    ("networks_and_routers", networks_and_routers),
    ("floating_ips", floating_ips),
    ("security_groups", security_groups),
    ("servers", servers),
    ("images_keys_and_groups", images_keys_and_groups),
    ("load_balancer_offers", load_balancer_offers),
    ("load_balancers", load_balancers),
    ("sdk", sdk),
];

/// Finds the command.
///
/// # Errors
/// How to get it.
pub(crate) fn find() -> Result<PathBuf, String> {
    let client = std::env::var_os(VARIABLE)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from);
    client.ok_or_else(|| {
        format!(
            "{VARIABLE} names no command; `cargo xtask test --full` installs it, it needs Python"
        )
    })
}

fn identity(cloud: &Cloud) -> anyhow::Result<()> {
    ensure!(
        !cloud
            .script("token issue -f value -c id")?
            .trim()
            .is_empty()
    );
    ensure!(!cloud.value("token issue", "id")?.is_empty());
    let catalog = cloud.list("catalog list")?;
    let kinds: Vec<_> = catalog
        .iter()
        .filter_map(|row| row["Type"].as_str())
        .collect();
    ensure!(
        ["identity", "compute", "network", "load-balancer"]
            .iter()
            .all(|kind| kinds.contains(kind)),
        "{kinds:?}"
    );
    cloud.run("versions show")?;
    ensure!(cloud.names("project list")?.contains(&"demo".to_owned()));
    cloud.run("project show demo")?;
    cloud.run("role assignment list --names")?;
    cloud.run("application credential create robot --secret hush")?;
    ensure!(
        cloud
            .names("application credential list")?
            .contains(&"robot".to_owned())
    );
    cloud.run("application credential delete robot")?;
    ensure!(
        !cloud
            .names("application credential list")?
            .contains(&"robot".to_owned())
    );
    Ok(())
}

fn networks_and_routers(cloud: &Cloud) -> anyhow::Result<()> {
    cloud.run("network create n1")?;
    cloud.run("network set n1 --description first")?;
    ensure!(cloud.value("network show n1", "description")? == "first");
    cloud.run("subnet create --network n1 --subnet-range 10.1.0.0/24 s1")?;
    cloud.run("router create r1")?;
    cloud.run("router add subnet r1 s1")?;
    cloud.run("router set r1 --route destination=10.244.0.0/24,gateway=10.1.0.9")?;
    ensure!(
        cloud
            .run("router show r1 -f json")?
            .contains("10.244.0.0/24")
    );
    cloud.run("router unset r1 --route destination=10.244.0.0/24,gateway=10.1.0.9")?;
    cloud.run("port create --network n1 --fixed-ip subnet=s1,ip-address=10.1.0.9 p1")?;
    cloud.run("port set p1 --allowed-address ip-address=10.244.0.0/24")?;
    ensure!(cloud.run("port show p1 -f json")?.contains("10.244.0.0/24"));
    ensure!(
        cloud
            .names("port list --network n1")?
            .contains(&"p1".to_owned())
    );
    let refused = cloud.fails("subnet delete s1")?;
    ensure!(refused.contains("in use") || refused.contains("409"), "{refused}");
    cloud.run("port delete p1")?;
    cloud.run("router remove subnet r1 s1")?;
    cloud.run("router delete r1")?;
    cloud.run("subnet delete s1")?;
    cloud.run("network delete n1")?;
    ensure!(!cloud.names("network list")?.contains(&"n1".to_owned()));
    cloud.fails("network show n1").map(drop)
}

fn floating_ips(cloud: &Cloud) -> anyhow::Result<()> {
    cloud.run("network create n2")?;
    cloud.run("subnet create --network n2 --subnet-range 10.2.0.0/24 s2")?;
    cloud.run("network create outside --external")?;
    cloud.run("subnet create --network outside --subnet-range 203.0.113.0/24 --no-dhcp outside")?;
    cloud.run("router create r2")?;
    cloud.run("router set r2 --external-gateway outside")?;
    cloud.run("router add subnet r2 s2")?;
    cloud.run("port create --network n2 p2")?;
    let address = cloud.value("floating ip create outside", "floating_ip_address")?;
    cloud.run(&format!("floating ip set {address} --port p2"))?;
    ensure!(
        cloud
            .value(&format!("floating ip show {address}"), "fixed_ip_address")?
            .starts_with("10.2.0.")
    );
    cloud.run(&format!("floating ip unset {address} --port"))?;
    cloud.run(&format!("floating ip delete {address}"))?;
    ensure!(cloud.list("floating ip list --network outside")?.is_empty());
    Ok(())
}

fn security_groups(cloud: &Cloud) -> anyhow::Result<()> {
    cloud.run("security group create g1 --description web")?;
    cloud.run(
        "security group rule create g1 --protocol tcp --dst-port 80:81 --remote-ip 192.0.2.0/24",
    )?;
    let rules = cloud.list("security group rule list g1")?;
    // The two for what goes out are there from the start.
    ensure!(rules.len() == 3, "{rules:?}");
    let own = rules
        .iter()
        .find(|row| row["IP Range"] == "192.0.2.0/24")
        .context("the rule is not listed")?;
    cloud.run(&format!("security group rule delete {}", own["ID"].as_str().unwrap_or_default()))?;
    ensure!(cloud.list("security group rule list g1")?.len() == 2);
    cloud.run("security group delete g1")?;
    cloud.fails("security group show g1").map(drop)
}

fn servers(cloud: &Cloud) -> anyhow::Result<()> {
    cloud.run("network create n3")?;
    cloud.run("subnet create --network n3 --subnet-range 10.3.0.0/24 s3")?;
    ensure!(cloud.names("flavor list")?.contains(&"m1.small".to_owned()));
    cloud.run("availability zone list")?;
    cloud.run("limits show --absolute")?;
    cloud.run("server create --image cirros --flavor m1.small --network n3 --wait v1")?;
    ensure!(cloud.run("server show v1 -f json")?.contains("10.3.0."));
    cloud.run("server set v1 --property role=node")?;
    cloud.run("server stop v1")?;
    ensure!(cloud.value("server show v1", "status")? == "SHUTOFF");
    cloud.run("server start v1")?;
    ensure!(cloud.value("server show v1", "status")? == "ACTIVE");
    ensure!(
        cloud
            .names("server list --long")?
            .contains(&"v1".to_owned())
    );
    cloud.run("server delete v1 --wait")?;
    ensure!(!cloud.names("server list")?.contains(&"v1".to_owned()));
    Ok(())
}

fn load_balancers(cloud: &Cloud) -> anyhow::Result<()> {
    cloud.run("network create n4")?;
    cloud.run("subnet create --network n4 --subnet-range 127.44.0.0/24 s4")?;
    cloud.run("loadbalancer create --name b1 --vip-subnet-id s4 --wait")?;
    ensure!(cloud.value("loadbalancer show b1", "provisioning_status")? == "ACTIVE");
    cloud.run(
        "loadbalancer listener create --name l1 --protocol TCP --protocol-port 18080 --wait b1",
    )?;
    cloud.run("loadbalancer pool create --name o1 --lb-algorithm ROUND_ROBIN --listener l1 --protocol TCP --wait")?;
    cloud.run(
        "loadbalancer member create --name m1 --address 127.44.0.9 --protocol-port 18081 --wait o1",
    )?;
    let monitor = "loadbalancer healthmonitor create --name h1 --delay 5 --timeout 3 --max-retries 2 --type TCP --wait o1";
    cloud.run(monitor)?;
    cloud.run("loadbalancer set b1 --description public --wait")?;
    cloud.run("loadbalancer member set o1 m1 --weight 5 --wait")?;
    ensure!(cloud.value("loadbalancer member show o1 m1", "weight")? == "5");
    ensure!(
        cloud
            .run("loadbalancer status show b1")?
            .contains("127.44.0.9")
    );
    cloud.run("loadbalancer stats show b1")?;
    ensure!(cloud.names("loadbalancer listener list --loadbalancer b1")? == ["l1"]);
    let refused = cloud.fails("loadbalancer delete b1 --wait")?;
    ensure!(refused.contains("400") || refused.contains("children"), "{refused}");
    cloud.run("loadbalancer delete b1 --cascade --wait")?;
    ensure!(
        cloud
            .list("loadbalancer list")?
            .iter()
            .all(|row| row["name"] != "b1")
    );
    cloud.fails("loadbalancer show b1").map(drop)
}

fn load_balancer_offers(cloud: &Cloud) -> anyhow::Result<()> {
    cloud
        .run("loadbalancer flavorprofile create --name fp1 --provider amphora --flavor-data {}")?;
    cloud.run(
        "loadbalancer flavor create --name f1 --flavorprofile fp1 --description small --enable",
    )?;
    ensure!(cloud.value("loadbalancer flavor show f1", "description")? == "small");
    cloud
        .run("loadbalancer availabilityzoneprofile create --name zp1 --provider amphora --availability-zone-data {}")?;
    cloud.run("loadbalancer availabilityzone create --name z1 --availabilityzoneprofile zp1")?;
    cloud.run("loadbalancer availabilityzone delete z1")?;
    cloud.run("loadbalancer flavor delete f1").map(drop)
}

fn images_keys_and_groups(cloud: &Cloud) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("disk.img");
    std::fs::write(&file, "content")?;
    let file = file.to_str().context("the path of a file")?;
    cloud
        .run(&format!("image create --disk-format raw --container-format bare --file {file} i1"))?;
    ensure!(cloud.value("image show i1", "status")? == "active");
    cloud.run("image set i1 --property hw_disk_bus=virtio")?;
    ensure!(
        cloud
            .names("image list --shared")?
            .contains(&"i1".to_owned())
    );
    cloud.run("keypair create k1")?;
    ensure!(cloud.names("keypair list")?.contains(&"k1".to_owned()));
    cloud.run("server group create --policy anti-affinity sg1")?;
    let group = cloud.value("server group show sg1", "id")?;
    cloud.run("network create n6")?;
    cloud.run("subnet create --network n6 --subnet-range 10.6.0.0/24 s6")?;
    cloud.run(&format!("server create --image i1 --flavor m1.small --network n6 --key-name k1 --hint group={group} --wait v6"))?;
    let server = cloud.value("server show v6", "id")?;
    ensure!(
        cloud
            .run("server group show sg1 -f json")?
            .contains(&server)
    );
    cloud.run("server delete v6 --wait")?;
    cloud.run("server group delete sg1")?;
    cloud.run("keypair delete k1")?;
    cloud.run("image delete i1")?;
    cloud.fails("image show i1").map(drop)
}

fn sdk(cloud: &Cloud) -> anyhow::Result<()> {
    let said = cloud.python(include_str!("sdk.py"))?;
    ensure!(said.trim() == "done", "{said}");
    Ok(())
}

/// Applies a Terraform-like sequence with the Go library that Terraform uses, and destroys it.
pub(crate) fn gophercloud(program: &Path) -> anyhow::Result<()> {
    let cloud = Cloud::start(PathBuf::new())?;
    let said = cloud.program(program)?;
    ensure!(said.trim() == "done", "{said}");
    Ok(())
}
