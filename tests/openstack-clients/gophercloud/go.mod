// A Terraform-like sequence on gophercloud; see main.go.
module ccm.invalid/tests/openstack-clients/gophercloud

go 1.26.0

require github.com/gophercloud/gophercloud/v2 v2.12.0
