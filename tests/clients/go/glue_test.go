// What replaces dtm's own server in its tests: a broker that runs already, reached over its HTTP interface.
// The runner (tests/clients/go_suite.py) removes the functions of the same names from its copy of dtm's tests.

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dtm-labs/dtm/client/dtmcli"
	"github.com/dtm-labs/dtm/client/dtmcli/dtmimp"
	"github.com/dtm-labs/dtm/dtmsvr"
	"github.com/dtm-labs/dtm/dtmsvr/config"
	"github.com/dtm-labs/dtm/dtmutil"
	"github.com/dtm-labs/dtm/test/busi"
	"github.com/dtm-labs/logger"
	"github.com/stretchr/testify/assert"
)

const (
	patience = 60 * time.Second
	// Branches over HTTP take this long, because dtm's tests look for "submitted" between a submit and its branches.
	branchTime      = 300 * time.Millisecond
	timeoutToFail   = 35 // dtm's default, in seconds
	alertRetryLimit = 3
)

func TestMain(m *testing.M) {
	config.MustLoadConfig("")
	logger.InitLog("error")
	port, err := strconv.ParseInt(os.Getenv("BANK_PORT"), 10, 64)
	dtmimp.E2P(err)
	busi.BusiConf.Host, busi.BusiConf.Port = "127.0.0.1", port
	busi.BusiConf.User, busi.BusiConf.Password = os.Getenv("BANK_USER"), os.Getenv("BANK_PASSWORD")
	if os.Getenv(dyingAs) != "" {
		die(os.Getenv(dyingAs), os.Getenv(dyingGid))
	}
	populate()
	hsvr, gsvr := busi.Startup()
	go busi.RunGrpc(gsvr)
	go func() { dtmimp.E2P(http.ListenAndServe(fmt.Sprintf(":%d", busi.BusiPort), slowly(hsvr))) }()
	subscribeTopic()
	subscribeGrpcTopic()
	os.Exit(m.Run())
}

// populate is busi.PopulateDB without MongoDB.
func populate() {
	for _, name := range []string{"busi", "dtmcli.barrier"} {
		dtmutil.RunSQLScript(busi.BusiConf, fmt.Sprintf("%s/%s.mysql.sql", dtmutil.GetSQLDir(), name), false)
	}
	_, err := busi.RedisGet().FlushAll(context.Background()).Result()
	dtmimp.E2P(err)
	busi.SetRedisBothAccount(10000, 10000)
}

func slowly(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("op") == dtmimp.OpAction {
			time.Sleep(branchTime)
		}
		handler.ServeHTTP(w, r)
	})
}

type branchSeen struct {
	Status   string `json:"status"`
	Attempts int    `json:"attempts"`
}

type seen struct {
	Transaction *struct {
		Status     string    `json:"status"`
		CreateTime time.Time `json:"create_time"`
		CustomData string    `json:"custom_data"`
		Options    string    `json:"options"`
	} `json:"transaction"`
	Branches []branchSeen `json:"branches"`
	checks   int
}

func get(url string, into interface{}) {
	resp, err := http.Get(url)
	dtmimp.E2P(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	dtmimp.E2P(err)
	dtmimp.E2P(json.Unmarshal(body, into))
}

func look(gid string) seen {
	native := struct {
		Checks int `json:"checks"`
	}{}
	get("http://localhost:36789/v1/transactions/"+gid, &native)
	// Read last: it shows at least what followed the checks that were counted.
	found := seen{checks: native.Checks}
	get(DtmServer+"/query?gid="+gid, &found)
	dtmimp.PanicIf(found.Transaction == nil, fmt.Errorf("no TransGlobal with gid: %s found", gid))
	return found
}

func getTransStatus(gid string) string { return look(gid).Transaction.Status }

func getBranchesStatus(gid string) []string {
	status := []string{}
	for _, branch := range look(gid).Branches {
		status = append(status, branch.Status)
	}
	return status
}

func (s seen) finished() bool {
	return s.Transaction.Status == StatusSucceed || s.Transaction.Status == StatusFailed
}

// passed tells whether a pass over the branches has ended since: with all of them, or with one that did not succeed.
func (s seen) passed(before seen) bool {
	if s.finished() {
		return true
	}
	for i, branch := range s.Branches {
		if branch.Status != StatusSucceed && branch.Attempts > before.attempts(i) {
			return true
		}
	}
	return false
}

func (s seen) attempts(i int) int {
	if i < len(s.Branches) {
		return s.Branches[i].Attempts
	}
	return 0
}

func (s seen) age() time.Duration { return time.Since(s.Transaction.CreateTime) }

func (s seen) delay() time.Duration {
	custom := struct{ Delay int }{}
	_ = json.Unmarshal([]byte(s.Transaction.CustomData), &custom)
	return time.Duration(custom.Delay) * time.Second
}

func (s seen) timeout() time.Duration {
	options := struct {
		TimeoutToFail int `json:"timeout_to_fail"`
	}{}
	_ = json.Unmarshal([]byte(s.Transaction.Options), &options)
	if options.TimeoutToFail == 0 {
		options.TimeoutToFail = timeoutToFail
	}
	return time.Duration(options.TimeoutToFail) * time.Second
}

func until(t *testing.T, what string, done func() bool) {
	for deadline := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			if t == nil {
				panic("not within " + patience.String() + ": " + what)
			}
			t.Errorf("not within %s: %s", patience, what)
			return
		}
	}
}

func waitTransProcessed(gid string) {
	until(nil, "a pass over the branches of "+gid, func() bool {
		now := look(gid)
		return now.passed(seen{}) || now.delay() > now.age()
	})
}

// cronTransOnce has the broker do at once what dtm's timer does: a check of what is prepared and old enough, or the
// next tries of branches. The broker's clock cannot be moved, so a delay is waited for.
func cronTransOnce(t *testing.T, gid string) {
	if gid == "" {
		return // nothing is due; what the test looks at next shows it
	}
	before := look(gid)
	if before.Transaction.Status == StatusPrepared {
		if before.age()+dtmsvr.NowForwardDuration < before.timeout() {
			return // dtm's timer finds it and leaves it
		}
		hurry(t, gid)
		until(t, "a check of "+gid, func() bool {
			now := look(gid)
			return now.checks > before.checks && (now.Transaction.Status == StatusPrepared || now.passed(before))
		})
		return
	}
	hurry(t, gid)
	until(t, "a pass over the branches of "+gid, func() bool { return look(gid).passed(before) })
	if strings.HasPrefix(gid, "TestMsgWebhook") && look(gid).attempts(1) == alertRetryLimit {
		until(t, "an alert about "+gid, func() bool { return busi.WebHookResult["gid"] == gid })
	}
}

func hurry(t *testing.T, gid string) {
	resp, err := dtmcli.GetRestyClient().R().SetBody(map[string]string{"gid": gid}).Post(DtmServer + "/resetNextCronTime")
	assert.Nil(t, err)
	assert.Equal(t, 200, resp.StatusCode())
}

// genSaga makes a msg of the same two steps: forceStop means the same for both.
func genSaga(gid string, outFailed bool, inFailed bool) *dtmcli.Msg {
	req := busi.GenReqHTTP(30, outFailed, inFailed)
	return dtmcli.NewMsg(DtmServer, gid).Add(busi.Busi+"/TransOut", &req).Add(busi.Busi+"/TransIn", &req)
}

func testStoreResetCronTime(t *testing.T, _ string, _ func(int64, int64) (int64, bool, error)) {
	t.Skip("writes to the storage of dtm's server")
}
