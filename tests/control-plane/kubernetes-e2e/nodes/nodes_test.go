// Runs Kubernetes' own tests of a cloud's nodes (k8s.io/kubernetes/test/e2e/cloud), unchanged. They ask for a provider by
// name, which must be able to delete the machine of a node: here the command in DELETE_NODE does so, with the node's name as
// its argument.
package nodes

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	_ "k8s.io/kubernetes/test/e2e/cloud"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
)

// provider is a cloud of which the tests know only how a machine is deleted.
type provider struct{ framework.NullProvider }

// DeleteNode deletes the machine of a node in the cloud.
func (provider) DeleteNode(node *v1.Node) error {
	command := exec.CommandContext(context.Background(), os.Getenv("DELETE_NODE"), node.Name)
	output, err := command.CombinedOutput()
	fmt.Fprintf(ginkgo.GinkgoWriter, "machine of %s: %s\n", node.Name, output)
	return err
}

func TestMain(m *testing.M) {
	// The tests are for these two names alone; either will do.
	framework.RegisterProvider("aws", func() (framework.ProviderInterface, error) { return provider{}, nil })
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

func TestNodes(t *testing.T) {
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	ginkgo.RunSpecs(t, "nodes", suite, reporter)
}
