// Command go-elector takes part in a leader election with Go's client-go and does nothing else, so that tests see how
// our election gets on with that of Go's controllers on one Lease.
//
// It prints one line of JSON for each thing that happens: "acquired" and "lost" for itself, and "leader" with the
// identity of whoever leads, itself included. It ends with 0 on SIGTERM or SIGINT, and with 1 when it lost the Lease.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

type settings struct {
	kubeconfig, namespace, name, identity     string
	leaseDuration, renewDeadline, retryPeriod time.Duration
	release                                   bool
}

// event is one printed line.
type event struct {
	Event    string    `json:"event"`
	Identity string    `json:"identity"`
	Time     time.Time `json:"time"`
}

var output sync.Mutex

func say(what, identity string) {
	output.Lock()
	defer output.Unlock()
	line := event{Event: what, Identity: identity, Time: time.Now()}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

func main() {
	var s settings
	flag.StringVar(&s.kubeconfig, "kubeconfig", "", "file with the way to the API server")
	flag.StringVar(&s.namespace, "namespace", "kube-system", "namespace of the Lease")
	flag.StringVar(&s.name, "name", "cloud-controller-manager", "name of the Lease")
	flag.StringVar(&s.identity, "identity", "", "identity in the Lease")
	flag.DurationVar(&s.leaseDuration, "lease-duration", 15*time.Second, "as --leader-elect-lease-duration")
	flag.DurationVar(&s.renewDeadline, "renew-deadline", 10*time.Second, "as --leader-elect-renew-deadline")
	flag.DurationVar(&s.retryPeriod, "retry-period", 2*time.Second, "as --leader-elect-retry-period")
	flag.BoolVar(&s.release, "release", false, "give the Lease back on SIGTERM")
	flag.Parse()
	if s.kubeconfig == "" || s.identity == "" || flag.NArg() > 0 {
		fail(errors.New("--kubeconfig and --identity are needed, and nothing but flags"))
	}
	if err := run(s); err != nil {
		fail(err)
	}
}

func run(s settings) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return err
	}
	// As Go's controllers have it: a request is given up well before the renew deadline.
	config.Timeout = max(time.Second, s.renewDeadline/2)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: s.namespace, Name: s.name},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: s.identity},
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if !s.release {
		// As Go's cloud-controller-managers have it: nobody hears of the end.
		go func() {
			<-ctx.Done()
			os.Exit(0)
		}()
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		Name:            s.name,
		LeaseDuration:   s.leaseDuration,
		RenewDeadline:   s.renewDeadline,
		RetryPeriod:     s.retryPeriod,
		ReleaseOnCancel: s.release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { say("acquired", s.identity) },
			OnStoppedLeading: func() { say("lost", s.identity) },
			OnNewLeader:      func(identity string) { say("leader", identity) },
		},
	})
	if err != nil {
		return err
	}
	elector.Run(ctx)
	if ctx.Err() == nil {
		return errors.New("the Lease was lost")
	}
	return nil
}
