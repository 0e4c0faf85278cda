// Command ccm-go-baseline is a cloud-controller-manager on Go's k8s.io/cloud-provider, with a cloud in its own memory.
// The benchmark of this repository measures its own manager beside it.
//
// It is put together the way that framework documents: its command, its options, its controllers and its aliases, so
// every flag is the framework's own. The cloud makes up the same values and takes the same time as the mock cloud of
// this repository, so that both managers have the same to do.
package main

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"

	// What the managers of real clouds link, since it takes memory and time: log format and client metrics.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// Name of the provider, for --cloud-provider.
const providerName = "mock"

func main() {
	cloudprovider.RegisterCloudProvider(providerName, newCloud)
	managerOptions, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		fail(err)
	}
	command := app.NewCloudControllerManagerCommand(
		managerOptions,
		openCloud,
		app.DefaultInitFuncConstructors,
		names.CCMControllerAliases(),
		cliflag.NamedFlagSets{},
		wait.NeverStop,
	)
	os.Exit(cli.Run(command))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

// Opens the cloud that --cloud-provider names. The framework takes no error here: whoever has one ends the process.
func openCloud(config *config.CompletedConfig) cloudprovider.Interface {
	wanted := config.ComponentConfig.KubeCloudShared.CloudProvider
	opened, err := cloudprovider.InitCloudProvider(wanted.Name, wanted.CloudConfigFile)
	if err == nil && opened == nil {
		err = fmt.Errorf("--cloud-provider=%s is not served here, only %s is", wanted.Name, providerName)
	}
	if err != nil {
		fail(err)
	}
	return opened
}
