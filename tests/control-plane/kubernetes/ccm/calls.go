package main

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

var (
	errThrottled = errors.New("rate limit exceeded")
	errOutage    = errors.New("the cloud is down")
)

// What an SDK does about throttling before it gives up, with doubled pauses.
const (
	attempts     = 10
	firstPause   = 200 * time.Millisecond
	longestPause = 20 * time.Second
)

// service is a part of the cloud's API, which takes its own time and has its own rate limit.
type service struct {
	latency time.Duration
	// Nil when there is no limit.
	bucket *bucket
}

func newService(latency duration, limit *rateLimit) service {
	made := service{latency: latency.Duration}
	if limit != nil {
		made.bucket = &bucket{rate: limit.PerSecond, size: limit.Burst, tokens: limit.Burst, filled: time.Now()}
	}
	return made
}

// bucket is a token bucket that starts full.
type bucket struct {
	mutex  sync.Mutex
	rate   float64
	size   float64
	tokens float64
	filled time.Time
}

func (b *bucket) take() bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	now := time.Now()
	b.tokens = min(b.size, b.tokens+now.Sub(b.filled).Seconds()*b.rate)
	b.filled = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// ledger counts calls and knows whether the cloud is down.
type ledger struct {
	mutex  sync.Mutex
	counts map[string]uint64
	down   bool
}

func (l *ledger) count(operation string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.counts[operation]++
}

func (l *ledger) snapshot() map[string]uint64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return maps.Clone(l.counts)
}

func (l *ledger) setDown(down bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.down = down
}

func (l *ledger) isDown() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.down
}

// call makes one call, and again while it is throttled, as SDKs do. Its effect is the caller's, after it succeeded.
func (c *cloud) call(ctx context.Context, of *service, operation string) error {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		err := c.attempt(ctx, of, operation)
		if attempt == attempts || !errors.Is(err, errThrottled) {
			return err
		}
		// Half of it random, so that many who were refused do not come back together.
		if err := sleep(ctx, pause/2+rand.N(pause/2)); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// One request to the cloud: it is counted, refused at once when there are too many, and otherwise takes its time.
func (c *cloud) attempt(ctx context.Context, of *service, operation string) error {
	c.ledger.count(operation)
	if of.bucket != nil && !of.bucket.take() {
		c.ledger.count("throttled")
		return errThrottled
	}
	if err := sleep(ctx, of.latency); err != nil {
		return err
	}
	if c.ledger.isDown() {
		return errOutage
	}
	return nil
}

func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
